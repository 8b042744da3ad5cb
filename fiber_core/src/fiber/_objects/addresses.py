"""Where programs meet: addresses as the stdlib writes them, and as URLs."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Iterable
from multiprocessing import util
from typing import TYPE_CHECKING, Any, TypeAlias

from fiber._tunnel import routes

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime
    from fiber._wire.endpoint import Endpoint

#: ``(host, port)``, or a path
Address: TypeAlias = tuple[str, int] | str

_MODE = 0o600
# the one that needs no nng, where there is one
_UNIX = "unix://" if sys.platform == "linux" else "ipc://"
_INET = "tls+tcp://"
_ANYWHERE = "0.0.0.0"  # noqa: S104 - recognised, where the user asks for it


def check_family(family: str) -> None:
    """Refuse a family that there is not.

    Raises:
        ValueError: not on this system, or nowhere.
    """
    if family not in ("AF_INET", "AF_UNIX") or not hasattr(socket, family):
        hint = "; use AF_INET or AF_UNIX"
        msg = f"Family {family} is not recognized.{hint if sys.platform != 'win32' else ''}"
        raise ValueError(msg)


def family_of(address: Any) -> str:
    """The family that an address is of.

    Raises:
        ValueError: none.
    """
    if isinstance(address, tuple):
        return "AF_INET"
    if isinstance(address, str):
        return "AF_PIPE" if address.startswith("\\\\") else "AF_UNIX"
    msg = f"address type of {address!r} unrecognized"
    raise ValueError(msg)


def any_address(family: str | None, node: Runtime) -> tuple[str, Address]:
    """A family where none was chosen, and an address of it that the rest of the run can reach."""
    host = None
    if not node.info.capabilities.same_host:
        # what is dialled by other hosts, where there is such a thing
        host = _host(min(node.urls(), key=routes.is_route))
    if family is None:
        family = "AF_UNIX" if host is None else "AF_INET"
    if family == "AF_INET":
        return family, (host or "localhost", 0)
    return family, str(node.directory / f"listener-{secrets.token_hex(4)}")


def probe(address: Any, family: str) -> None:
    """Ask the system whether an address can be bound, whose errors are what programs expect.

    Raises:
        OSError: what it says.
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
    # under another name, which whoever closes it late may remove: the path may be another's then
    folder, _ = os.path.split(os.path.abspath(os.fsdecode(address)))  # noqa: PTH100
    return f"{_UNIX}{os.path.join(folder, f'.{secrets.token_hex(4)}')}"  # noqa: PTH118


def publish(endpoint: Endpoint, address: Any) -> None:
    """Give a socket that is listened on its path, for this user alone."""
    own = endpoint.urls[0][len(_UNIX) :]
    os.chmod(own, _MODE)  # noqa: PTH101 - no need of another object
    os.rename(own, address)  # noqa: PTH104 - as it was given
    endpoint.urls[0] = f"{_UNIX}{os.path.abspath(os.fsdecode(address))}"  # noqa: PTH100


def address_of(url: str, family: str) -> Address:
    """What users are told of a URL that is listened on."""
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


def complain(address: Any, family: str, cause: BaseException) -> None:
    """Nobody answers there: raise what the system says of it, as the stdlib would.

    Raises:
        OSError: such as ConnectionRefusedError, FileNotFoundError.
    """
    try:
        with socket.socket(getattr(socket, family)) as probe:
            probe.settimeout(5)
            probe.connect(address)
    except OSError as error:
        raise error from cause


def reachable(url: str) -> list[str]:
    """What others may dial to reach a URL that is listened on: one for each network, if all."""
    if url.startswith(_UNIX) or _host(url) != _ANYWHERE:
        return [url]
    from fiber._wire.interfaces import interfaces

    port = url.rpartition(":")[2]
    found = [one for one in interfaces() if one.is_up and ":" not in one.address]
    # of any use on this host only
    found.sort(key=lambda one: one.is_loopback)
    return [f"{_INET}{one.address}:{port}" for one in found]


def near(neighbours: Iterable[str], node: Runtime) -> list[str]:
    """The URLs to listen on so that whoever listens at ``neighbours`` may reach us."""
    urls: list[str] = []
    for url in neighbours:
        if url.startswith(_UNIX):
            own = f"{_UNIX}{node.directory / f'realm-{secrets.token_hex(4)}.sock'}"
        else:
            own = f"{_INET}{_own_host(_host(url), int(url.rpartition(':')[2]))}:0"
        if not any(one.startswith(own.partition("://")[0]) for one in urls):
            urls.append(own)
    return urls


def _own_host(host: str, port: int) -> str:
    """By which address of ours we reach another host."""
    if host != _ANYWHERE:
        # nothing is sent: the system only looks up the way
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
    # what is reached through the hub has the name of its process in front
    return url.partition("://")[2].rpartition(":")[0].rpartition("@")[2]
