"""Reachability of members: each dials the others, and the networks common to all are chosen.

:class:`Beacon` answers and :func:`dial` probes, on each member; :func:`targets` and :func:`choose`
are pure, for the controller of the run.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from fiber._base import values
from fiber._ring.mpi.messages import Address, Hello
from fiber._wire.accept_thread import AcceptThread
from fiber.exceptions import FiberError

__all__ = ["Beacon", "Networks", "addresses", "choose", "dial", "targets"]

_AT_ONCE = 32
_LONGEST = 256


class Beacon:
    """Answers clients that have the token with the member's name, at one port of its addresses.

    Two hosts may have the same address, on a bridge that each has for itself. So an answer counts
    only where it has the right name.

    Args:
        name: the member's.
        token: what clients have to show.
        patience: seconds for a client to show it.
        host: where it listens; all interfaces by default.
    """

    def __init__(self, name: str, token: str, patience: float, host: str = "") -> None:
        self._name, self._token, self._patience = name, token, patience
        listener = socket.create_server((host, 0), backlog=128)
        listener.setblocking(True)
        self.port: int = listener.getsockname()[1]
        self._accepting = AcceptThread(
            listener,
            self._answer,
            name="fiber-beacon",
            thread_per_connection=True,
            # whoever has the token shows it at once
            most=_AT_ONCE,
        )

    def close(self) -> None:
        """Listen no more; idempotent."""
        self._accepting.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            line = _line(connection, self._patience)
            if hmac.compare_digest(line, self._token.encode()):
                connection.sendall(self._name.encode() + b"\n")


def addresses() -> tuple[Address, ...]:
    """Return this host's IPv4 addresses that are up, in the system's order."""
    import psutil

    stats = psutil.net_if_stats()
    up = {name: i for i, name in socket.if_nameindex() if name in stats and stats[name].isup}
    return tuple(
        Address(
            interface=name,
            address=found.address,
            network=str(ipaddress.ip_network(f"{found.address}/{found.netmask}", strict=False)),
            index=up[name],
        )
        for name, all_found in psutil.net_if_addrs().items()
        for found in all_found
        if name in up and found.family is socket.AF_INET and found.netmask
    )


def dial(
    token: str, targets: Iterable[tuple[str, str, int]], patience: float
) -> frozenset[tuple[str, str]]:
    """Return names and addresses of the targets that answered with the expected name in time."""
    wanted = list(targets)
    if not wanted:
        return frozenset()
    with ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), "fiber-dial") as pool:
        answers = pool.map(lambda target: _ask(token, target[1], target[2], patience), wanted)
        return frozenset(
            (name, address)
            for (name, address, _), answer in zip(wanted, answers, strict=True)
            if answer == name.encode()
        )


def _ask(token: str, address: str, port: int, patience: float) -> bytes:
    try:
        with socket.create_connection((address, port), timeout=patience) as connection:
            connection.sendall(token.encode() + b"\n")
            return _line(connection, patience)
    except OSError:
        return b""


def _line(connection: socket.socket, patience: float) -> bytes:
    data = b""
    deadline = time.monotonic() + patience
    while b"\n" not in data and len(data) < _LONGEST:
        # one byte now and then is not enough
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        piece = connection.recv(_LONGEST)
        if not piece:
            break
        data += piece
    return data.partition(b"\n")[0]


#: most members that each one dials: its next ones, in the order of names
_MOST = 64
#: pairs that one message lists
_NAMED = 5


@values.frozen
class Networks:
    """Networks that the members of a run share."""

    #: address at which the others reach a member, by its name
    chosen: Mapping[str, Address]
    #: True where all members are on one host
    one_host: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The networks, as ``10.0.0.0/16``."""
        return tuple(dict.fromkeys(found.network for found in self.chosen.values()))


def targets(name: str, stations: Mapping[str, Hello]) -> tuple[tuple[str, str, int], ...]:
    """Return the targets of a member: name, address and port of each."""
    names = list(stations)
    index = names.index(name)
    # the first one is the launcher, which all members connect to
    others = [names[(index + step) % len(names)] for step in range(1, min(len(names), _MOST + 1))]
    if name != names[0] and names[0] not in others:
        others.append(names[0])
    return tuple(
        (other, found.address, stations[other].port)
        for other in others
        for found in stations[other].addresses
    )


def choose(
    stations: Mapping[str, Hello], dialled: Mapping[str, frozenset[tuple[str, str]]]
) -> Networks:
    """Choose networks in which all members reach each other.

    Args:
        stations: first messages of the members, by name, the launcher first.
        dialled: names and addresses that answered, by the member that dialled.

    Raises:
        FiberError: two members cannot reach each other; the text has names, addresses and port.
    """
    asked = {
        asker: dict.fromkeys(name for name, _, _ in targets(asker, stations)) for asker in stations
    }
    _refuse_unreached(stations, asked, dialled)
    usable = {name: _usable(name, up, asked, dialled) for name, up in stations.items()}
    loopback = {name: [a for a in found if _is_loopback(a)] for name, found in usable.items()}
    if all(loopback.values()):
        return Networks({name: found[0] for name, found in loopback.items()}, one_host=True)
    wide = {name: [a for a in found if not _is_loopback(a)] for name, found in usable.items()}
    first = next(iter(stations))
    for candidate in wide[first]:
        within = {
            name: [a for a in found if a.network == candidate.network]
            for name, found in wide.items()
        }
        if all(within.values()):
            return Networks({name: found[0] for name, found in within.items()}, one_host=False)
    # hosts in networks of their own, with routes between them
    chosen = {name: found[0] for name, found in wide.items() if found}
    missing = [name for name in stations if name not in chosen]
    if missing:
        msg = f"{', '.join(missing[:_NAMED])} has no address that all other members reach"
        raise FiberError(msg)
    return Networks(chosen, one_host=False)


def _usable(
    name: str,
    up: Hello,
    asked: Mapping[str, Collection[str]],
    dialled: Mapping[str, frozenset[tuple[str, str]]],
) -> list[Address]:
    """Return the addresses of a member that all which dialled it reached."""
    askers = [other for other, names in asked.items() if other != name and name in names]
    return [
        found
        for found in up.addresses
        if all((name, found.address) in dialled[asker] for asker in askers)
    ]


def _refuse_unreached(
    stations: Mapping[str, Hello],
    asked: Mapping[str, Collection[str]],
    dialled: Mapping[str, frozenset[tuple[str, str]]],
) -> None:
    wrong: list[tuple[str, str]] = []
    for asker, names in asked.items():
        reached = {name for name, _ in dialled[asker]}
        wrong += [(asker, other) for other in names if other not in reached]
    if not wrong:
        return
    listed = "; ".join(_unreached(asker, other, stations) for asker, other in wrong[:_NAMED])
    more = f"; and {len(wrong) - _NAMED} more pairs" if len(wrong) > _NAMED else ""
    msg = (
        f"{listed}{more}: MPI needs any port open between all members; open them, or their network"
    )
    raise FiberError(msg)


def _unreached(asker: str, other: str, stations: Mapping[str, Hello]) -> str:
    up = stations[other]
    tried: Sequence[str] = [a.address for a in up.addresses if not _is_loopback(a)]
    where = f"{asker} (on {stations[asker].host}) cannot reach {other} (on {up.host})"
    return f"{where} at {', '.join(tried) or 'any address'} port {up.port}"


def _is_loopback(found: Address) -> bool:
    return ipaddress.ip_address(found.address).is_loopback
