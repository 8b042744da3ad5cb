"""Whether stations reach each other: a port that tells its station's name, and who dials it."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from fiber._ring.mpi.messages import Address
from fiber._wire.accept_thread import Accepting

__all__ = ["Beacon", "addresses", "dial"]

#: seconds for an answer; on a network that drops packets, none comes
_TIMEOUT = 4.0
_AT_ONCE = 32
_LONGEST = 256


class Beacon:
    """Answers who shows the token with the station's name; all addresses, one port.

    Two hosts may have the same address, on a bridge that each has for itself. So an answer counts
    only where it has the right name.
    """

    def __init__(self, name: str, token: str) -> None:
        self._name, self._token = name, token
        listener = socket.create_server(("", 0), backlog=128)
        listener.setblocking(True)
        self.port: int = listener.getsockname()[1]
        self._accepting = Accepting(listener, self._answer, name="fiber-beacon", at_once=True)

    def close(self) -> None:
        """Listen no more."""
        self._accepting.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_TIMEOUT)
            if hmac.compare_digest(_line(connection), self._token.encode()):
                connection.sendall(self._name.encode() + b"\n")


def addresses() -> tuple[Address, ...]:
    """This host's addresses that are up, with their networks, in the system's order."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return tuple(
        Address(
            interface=name,
            address=found.address,
            network=str(ipaddress.ip_network(f"{found.address}/{found.netmask}", strict=False)),
        )
        for name, all_found in psutil.net_if_addrs().items()
        for found in all_found
        if name in up and found.family is socket.AF_INET and found.netmask
    )


def dial(token: str, targets: Iterable[tuple[str, str, int]]) -> frozenset[tuple[str, str]]:
    """The names and addresses among the targets that answered with the right name."""
    wanted = list(targets)
    if not wanted:
        return frozenset()
    with ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), "fiber-dial") as pool:
        answers = pool.map(lambda target: _ask(token, *target[1:]), wanted)
        return frozenset(
            (name, address)
            for (name, address, _), answer in zip(wanted, answers, strict=True)
            if answer == name.encode()
        )


def _ask(token: str, address: str, port: int) -> bytes:
    try:
        with socket.create_connection((address, port), timeout=_TIMEOUT) as connection:
            connection.sendall(token.encode() + b"\n")
            return _line(connection)
    except OSError:
        return b""


def _line(connection: socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and len(data) < _LONGEST:
        piece = connection.recv(_LONGEST)
        if not piece:
            break
        data += piece
    return data.partition(b"\n")[0]
