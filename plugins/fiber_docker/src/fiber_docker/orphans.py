"""Containers whose master was killed: nobody is left to remove them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

from fiber.backend_parts import liveness
from fiber.backend_parts.liveness import Liveness, Owner
from fiber.exceptions import BackendError, UnknownJobError
from fiber_docker.client import Client

__all__ = ["CONTAINER", "MASTER", "liveness_of_master", "master_mark", "sweep"]

log = logging.getLogger("fiber")

#: labels that say whose a container is: a process, and the container that this one runs in
MASTER, CONTAINER = "fiber.master", "fiber.master-container"
#: states of a container none of whose processes lives
_ENDED = frozenset({"exited", "dead"})


@functools.cache
def master_mark() -> str:
    """Who this process is."""
    return Owner.current().encode()


def sweep(client: Client, owner: str) -> list[str]:
    """Remove what masters left that are proven to be dead; the names of it.

    Args:
        client: the engine.
        owner: whose containers are looked at.
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
    """Whether the master of a container lives.

    One in a container of the same engine has no process that is seen from here; the engine tells of
    its container.

    Args:
        labels: of the container.
        state_of: the state of another container by its id; None where that is not known.
    """
    owner = Owner.decode(labels.get(MASTER, ""))
    told = Liveness.UNKNOWN if owner is None else owner.liveness()
    around = labels.get(CONTAINER)
    if told is Liveness.UNKNOWN and around and state_of(around) in _ENDED:
        return Liveness.DEAD
    return told


def _state(client: Client, container: str) -> str | None:
    try:
        return str(client.inspect(container)["State"]["Status"])
    except UnknownJobError:
        # this engine had it, and has it no more
        return "dead"
    except (BackendError, KeyError, TypeError) as error:
        log.debug("fiber: whether container %s runs is not known: %s", container, error)
        return None
