"""Removal of orphans: containers whose master was killed before it could remove them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import Liveness, Owner
from fiber.exceptions import BackendError, UnknownJobError
from fiber_docker.client import Client

log = logging.getLogger("fiber")

#: labels with the master's process, and with the container that it runs in
MASTER_LABEL, MASTER_CONTAINER_LABEL = "fiber.master", "fiber.master-container"
#: states of a container none of whose processes lives
_ENDED = frozenset({"exited", "dead"})


@functools.cache
def master_identity() -> str:
    """Identity of this process, the value of :data:`MASTER_LABEL`."""
    return Owner.current().encode()


def sweep(client: Client, owner: str) -> list[str]:
    """Remove the containers of masters that are proven to be dead; returns their names.

    Args:
        client: the engine.
        owner: value of the label ``fiber.owner``.
    """
    found = {
        # one that is being removed has no name any more
        str((item.get("Names") or [item["Id"]])[0]).lstrip("/"): item
        for item in client.containers(f"fiber.owner={owner}", "fiber.detached=0")
    }

    def liveness_of(name: str) -> Liveness:
        return liveness_of_master(found[name].get("Labels") or {}, state_of)

    @functools.cache
    def state_of(container: str) -> str | None:
        return _state(client, container)

    def remove(name: str) -> bool:
        try:
            client.remove(found[name]["Id"])
        except BackendError as error:
            log.warning("fiber: %s, whose program was killed, stays: %s", name, error)
            return False
        return True

    return liveness.sweep(found, liveness_of, remove)


def liveness_of_master(labels: Mapping[str, str], state_of: Any) -> Liveness:
    """Liveness of a container's master.

    A master in a container of the same engine has no process that is visible from this one; the
    state of its container decides.

    Args:
        labels: of the container.
        state_of: the state of another container by its id; None where that is not known.
    """
    owner = Owner.decode(labels.get(MASTER_LABEL, ""))
    known = Liveness.UNKNOWN if owner is None else owner.liveness()
    master_container = labels.get(MASTER_CONTAINER_LABEL)
    if known is Liveness.UNKNOWN and master_container and state_of(master_container) in _ENDED:
        return Liveness.DEAD
    return known


def _state(client: Client, container: str) -> str | None:
    try:
        return str(client.inspect(container)["State"]["Status"])
    except UnknownJobError:
        # this engine had it, and has it no more
        return "dead"
    except (BackendError, KeyError, TypeError) as error:
        log.debug("fiber: whether container %s runs is not known: %s", container, error)
        return None
