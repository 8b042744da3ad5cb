"""Networks that are common to all members, chosen by who can dial whom; pure but for :func:`addresses`.

What answers and what dials on each member is :mod:`fiber._ring.reachability`.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection, Mapping, Sequence

from fiber._base import values
from fiber._ring.mpi.messages import Address, Hello
from fiber._ring.protocol import ProbeTarget
from fiber._ring.reachability import PROOF_SIZE
from fiber.exceptions import FiberError

__all__ = ["Networks", "addresses", "choose", "proof_of", "targets"]


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


def proof_of(name: str, token: str) -> bytes:
    """Return what a member answers to those that dial it."""
    return hmac.digest(token.encode(), name.encode(), "sha256")[:PROOF_SIZE]


def targets(name: str, stations: Mapping[str, Hello], token: str) -> tuple[ProbeTarget, ...]:
    """Return the targets of a member, by their names.

    Args:
        name: the member's.
        stations: first messages of the members, by name, the launcher first.
        token: of the run.
    """
    return tuple(
        ProbeTarget(
            other,
            tuple(found.address for found in stations[other].addresses),
            stations[other].port,
            proof_of(other, token),
        )
        for other in _asked(name, list(stations))
    )


def _asked(name: str, names: Sequence[str]) -> list[str]:
    index = names.index(name)
    # the first one is the launcher, which all members connect to
    others = [names[(index + step) % len(names)] for step in range(1, min(len(names), _MOST + 1))]
    if name != names[0] and names[0] not in others:
        others.append(names[0])
    return others


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
    asked = {asker: _asked(asker, list(stations)) for asker in stations}
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
