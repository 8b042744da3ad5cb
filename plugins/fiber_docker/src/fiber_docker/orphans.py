"""Containers whose master was killed: nobody is left to remove them."""

from __future__ import annotations

import functools
import logging
import os
import socket

from fiber.exceptions import BackendError
from fiber.launch import rundir
from fiber_docker.client import Client

__all__ = ["master_mark", "sweep"]

log = logging.getLogger("fiber")


@functools.cache
def master_mark() -> str:
    """Who this process is: its host, its number, and when it began."""
    return f"{socket.gethostname()}:{os.getpid()}:{rundir.start_time(os.getpid())}"


def sweep(client: Client, owner: str) -> list[str]:
    """Remove what masters of this host left that were killed; the names of it.

    Args:
        client: the engine.
        owner: whose containers are looked at.
    """
    removed = []
    for item in client.containers(f"fiber.owner={owner}", "fiber.detached=0"):
        labels = item.get("Labels") or {}
        if is_orphan(labels.get("fiber.master", "")):
            # one that is being removed has no name any more
            name = str((item.get("Names") or [item["Id"]])[0]).lstrip("/")
            try:
                client.remove(item["Id"])
            except BackendError as error:
                log.warning("fiber: %s, whose program was killed, stays: %s", name, error)
            else:
                removed.append(name)
    return removed


def is_orphan(mark: str) -> bool:
    """True where a mark is of a process of this host that is no more."""
    host, _, rest = mark.partition(":")
    pid, _, began = rest.partition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        return not rundir.is_alive(int(pid), float(began))
    except ValueError:
        return False
