"""Addresses of ``Listener`` and ``Client``: ``(host, port)`` or a path, and as URLs."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Iterable
from multiprocessing import util
from typing import TYPE_CHECKING, Any, TypeAlias

from fiber._tunnel import is_route

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime
    from fiber._wire.endpoint import Endpoint

#: ``(host, port)``, or a path
Address: TypeAlias = tuple[str, int] | str

_MODE = 0o600
# Linux has the transport that needs no nng
_UNIX = "unix://" if sys.platform == "linux" else "ipc://"
_INET = "tls+tcp://"
_ANYWHERE = "0.0.0.0"  # noqa: S104 - recognised where the user chose it


def check_family(family: str) -> None:
    """Check that an address family exists.

    Raises:
        ValueError: it does not, or not on this system.
    """
    if family not in ("AF_INET", "AF_UNIX") or not hasattr(socket, family):
        hint = "; use AF_INET or AF_UNIX"
        msg = f"Family {family} is not recognized.{hint if sys.platform != 'win32' else ''}"
        raise ValueError(msg)


def family_of(address: Any) -> str:
    """Address family of an address.

    Raises:
        ValueError: it is no address.
    """
    if isinstance(address, tuple):
        return "AF_INET"
    if isinstance(address, str):
        return "AF_PIPE" if address.startswith("\\\\") else "AF_UNIX"
    msg = f"address type of {address!r} unrecognized"
    raise ValueError(msg)


def any_address(family: str | None, node: Runtime) -> tuple[str, Address]:
    """Family, and an address of it that all processes of the run can reach."""
    host = None
    if not node.info.capabilities.same_host:
        # the host that other hosts dial, if any
        host = _host(min(node.urls(), key=is_route))
    if family is None:
        family = "AF_UNIX" if host is None else "AF_INET"
    if family == "AF_INET":
        return family, (host or "localhost", 0)
    return family, str(node.directory / f"listener-{secrets.token_hex(4)}")


def probe(address: Any, family: str) -> None:
    """Bind an address for a moment, to raise the system's own error where that fails.

    Raises:
        OSError: it cannot be bound.
    """
    with socket.socket(getattr(socket, family)) as asked:
        asked.setblocking(True)
        if family == "AF_INET":
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asked.bind(address)
        if family == "AF_UNIX":
            if util.is_abstract_socket_namespace(address):
                msg = "AF_UNIX addresses without a file are not supported; use a path"
                raise OSError(msg)
            os.unlink(address)  # noqa: PTH108 - as it was given


def listen_url(address: Any, family: str) -> str:
    """The URL to listen on; see :func:`publish` for a path.

    Raises:
        OSError: the host has no such name.
    """
    if family == "AF_INET":
        host, port = address
        return f"{_INET}{_resolved(host)}:{port}"
    # under a name of its own: a late close removes that, not a path that is another's by then
    folder, _ = os.path.split(os.path.abspath(os.fsdecode(address)))  # noqa: PTH100
    return f"{_UNIX}{os.path.join(folder, f'.{secrets.token_hex(4)}')}"  # noqa: PTH118


def publish(endpoint: Endpoint, address: Any) -> None:
    """Move a listening socket to its path, accessible to this user only."""
    own = endpoint.urls[0][len(_UNIX) :]
    os.chmod(own, _MODE)  # noqa: PTH101 - no need of another object
    os.rename(own, address)  # noqa: PTH104 - as it was given
    endpoint.urls[0] = f"{_UNIX}{os.path.abspath(os.fsdecode(address))}"  # noqa: PTH100


def address_of(url: str, family: str) -> Address:
    """Address of a listening URL as the stdlib writes it."""
    _, _, rest = url.partition("://")
    if family == "AF_UNIX":
        return rest
    host, _, port = rest.rpartition(":")
    return host, int(port)


def dial_url(address: Any, family: str) -> str:
    """The URL to dial.

    Raises:
        OSError: the host has no such name.
    """
    if family == "AF_INET":
        host, port = address
        return f"{_INET}{_resolved(host)}:{port}"
    return f"{_UNIX}{os.fsdecode(address)}"


def raise_system_error(address: Any, family: str, cause: BaseException, *, timeout: float) -> None:
    """Raise the system's own error for an address that was dialled in vain.

    Args:
        address: the address.
        family: its family.
        cause: error of the dialling.
        timeout: seconds for which the address is dialled once more.

    Raises:
        OSError: such as ConnectionRefusedError, FileNotFoundError.
    """
    try:
        with socket.socket(getattr(socket, family)) as probe:
            probe.settimeout(timeout)
            probe.connect(address)
    except OSError as error:
        raise error from cause


def reachable(url: str) -> list[str]:
    """URLs that other hosts may dial to reach a listening URL; one for each network for 0.0.0.0."""
    if url.startswith(_UNIX) or _host(url) != _ANYWHERE:
        return [url]
    from fiber.backend_parts.address import interfaces

    port = url.rpartition(":")[2]
    found = [one for one in interfaces() if one.is_up and ":" not in one.address]
    # loopback last: it is of use on this host only
    found.sort(key=lambda one: one.is_loopback)
    return [f"{_INET}{one.address}:{port}" for one in found]


def listen_urls_near(neighbours: Iterable[str], node: Runtime) -> list[str]:
    """URLs to listen at so that the listeners at ``neighbours`` can dial this process."""
    urls: list[str] = []
    for url in neighbours:
        if url.startswith(_UNIX):
            own = f"{_UNIX}{node.directory / f'auth-{secrets.token_hex(4)}.sock'}"
        else:
            own = f"{_INET}{_own_host(_host(url), int(url.rpartition(':')[2]))}:0"
        if not any(one.startswith(own.partition("://")[0]) for one in urls):
            urls.append(own)
    return urls


def _own_host(host: str, port: int) -> str:
    """This host's address on the network to another host."""
    if host != _ANYWHERE:
        # nothing is sent: the system only looks up the route
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
            contextlib.suppress(OSError),
        ):
            probe.setblocking(True)
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    return _ANYWHERE


def _resolved(host: str) -> str:
    return socket.gethostbyname(host) if host else _ANYWHERE


def _host(url: str) -> str:
    # a tunnelled URL has the name of its process in front
    return url.partition("://")[2].rpartition(":")[0].rpartition("@")[2]
