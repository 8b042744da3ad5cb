"""Facts of the engine's network: how containers reach this process, and its own container."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fiber.backend_parts.address import source_address
from fiber.exceptions import BackendError, UnknownJobError
from fiber_docker.address import Facts
from fiber_docker.client import Client
from fiber_docker.config import DockerConfig
from fiber_docker.endpoint import effective_config

_ID = re.compile(r"[0-9a-f]{64}")
_DEFAULT = "bridge"
#: network modes without a network of the container's own
_NOT_JOINED = ("host", "none", "container:")


def find_facts(config: DockerConfig) -> Facts:
    """Read the facts from the engine that the settings name.

    Raises:
        BackendUnavailableError: it does not answer.
    """
    config = effective_config(config, os.environ)
    if config.address is not None:
        return Facts(address=config.address, network=config.network)
    with contextlib.closing(Client(config)) as client:
        return facts_of(client, config)


def facts_of(client: Client, config: DockerConfig) -> Facts:
    """Read the facts from an engine that is connected."""
    own = own_container(client)
    image = None if own is None else str(own.get("Config", {}).get("Image") or own["Image"])
    container = None if own is None else str(own["Id"])
    info = client.call("report its info", lambda api: api.info())
    # AppArmor ends each program there that may gain no privileges: launchpad.net/bugs/1908448
    snap = str(info.get("DockerRootDir", "")).startswith("/var/snap/")
    if own is not None:
        mode = str(own.get("HostConfig", {}).get("NetworkMode", ""))
        joined: dict[str, Any] = own.get("NetworkSettings", {}).get("Networks") or {}
        names = [config.network] if config.network else list(joined)
        if names and names[0] in joined and not mode.startswith(_NOT_JOINED):
            found = joined[names[0]]
            addresses = (found.get("IPAddress"), found.get("GlobalIPv6Address"))
            return Facts(
                network=None if names[0] == _DEFAULT else names[0],
                own=tuple(filter(None, addresses)),
                image=image,
                container=container,
                address=config.address,
                snap=snap,
            )
    return Facts(
        network=config.network,
        address=config.address,
        gateways=tuple(_gateways(client, config.network or _DEFAULT)),
        desktop="desktop" in str(info.get("OperatingSystem", "")).lower(),
        rootless=any("rootless" in str(word) for word in info.get("SecurityOptions") or ()),
        snap=snap,
        route=_route(client.url),
        image=image,
        container=container,
    )


def own_container(client: Client) -> dict[str, Any] | None:
    """The container that this process runs in, as its engine knows it; None outside of one."""
    for candidate in dict.fromkeys(_candidate_ids()):
        with contextlib.suppress(UnknownJobError):
            return client.inspect(candidate)
    return None


def _candidate_ids() -> Iterator[str]:
    """Possible ids of the container that this process runs in."""
    if not (Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()):
        return
    for path in ("/proc/self/mountinfo", "/proc/self/cgroup"):
        with contextlib.suppress(OSError):
            for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
                # the files that an engine mounts into each container lie in a folder of its id
                if "/containers/" in line or "docker" in line or "libpod" in line:
                    yield from _ID.findall(line)
    yield socket.gethostname()


def _gateways(client: Client, network: str) -> Iterator[str]:
    if network.startswith(_NOT_JOINED):
        return
    found: dict[str, Any] = {}
    try:
        found = client.call(
            f"inspect network {network!r}", lambda api: api.inspect_network(network)
        )
    except BackendError as error:
        if network != _DEFAULT:
            msg = f"{error}; `docker network ls` lists the networks (FIBER_DOCKER_NETWORK)"
            raise type(error)(msg) from error
    for config in found.get("IPAM", {}).get("Config") or ():
        gateway = str(config.get("Gateway") or "").partition("/")[0]
        if gateway:
            yield gateway


def _route(url: str) -> str | None:
    """The address of this host on the route to another one; sends nothing."""
    parts = urlsplit(url)
    if parts.scheme not in ("tcp", "http", "https", "ssh") or not parts.hostname:
        return None
    return source_address(parts.hostname, parts.port or 9)
