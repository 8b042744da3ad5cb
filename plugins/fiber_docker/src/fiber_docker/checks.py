"""Checks of an engine for ``fiber doctor``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fiber.backend_parts.address import interfaces
from fiber.exceptions import FiberError
from fiber.model import Check
from fiber_docker.address import Facts, choose
from fiber_docker.client import Client

_START = (
    "start the engine (systemctl start docker), or name another: DOCKER_HOST, docker context use"
)
_OLDEST = (1, 40)


def run_checks(client: Client, facts: Callable[[], Facts]) -> Iterator[Check]:
    """Check the engine, its limits and the address of this host; nothing is created."""
    try:
        version = client.call("report its version", lambda api: api.version())
        info = client.call("report its info", lambda api: api.info())
    except FiberError as error:
        yield Check(name="engine", ok=False, detail=str(error), fix=_START)
        return
    words = f"{version.get('Version')} at {client.url}, API {version.get('ApiVersion')}"
    yield Check(name="engine", ok=True, detail=words)
    api = tuple(int(part) for part in str(version.get("ApiVersion", "0.0")).split("."))
    if api < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        yield Check(
            name="engine's API", ok=False, detail=words, fix=f"update it to API {oldest} or later"
        )
    room = f"{info.get('NCPU')} CPUs, {int(info.get('MemTotal', 0)) >> 20} MB of memory"
    yield Check(name="room", ok=True, detail=room)
    for key, what in (("MemoryLimit", "memory"), ("CpuCfsQuota", "CPU")):
        enforced = bool(info.get(key))
        yield Check(
            name=f"{what} limits",
            ok=enforced,
            detail="enforced" if enforced else "the engine's kernel does not enforce them",
            fix="" if enforced else f"enable the {what} control group on the engine's machine",
        )
    yield from _check_address(facts)


def _check_address(facts: Callable[[], Facts]) -> Iterator[Check]:
    name = "the way from containers to this host"
    try:
        found = facts()
        address = choose(found, interfaces())
    except FiberError as error:
        fix = "set FIBER_DOCKER_ADDRESS to an address of this host that containers reach"
        yield Check(name=name, ok=False, detail=str(error), fix=fix)
        return
    where = address.advertise_host or address.bind_url.partition("://")[2].rpartition(":")[0]
    inside = " (this process is in a container itself)" if found.own else ""
    yield Check(name=name, ok=True, detail=f"{where}{inside}")
