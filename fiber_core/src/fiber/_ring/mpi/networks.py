"""Networks that are common to all members, chosen by who can dial whom; pure.

What answers and what dials on each member is :mod:`fiber._ring.reachability`. Apart from the choice of a
ring's addresses, :func:`fiber._ring.rendezvous.choose`: an mpirun is told networks, and all its members
are to be in one where that is possible.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence

from fiber._base import values
from fiber._ring.protocol import Address, Hello, ProbeResult, ProbeTarget
from fiber.exceptions import FiberError

__all__ = ["Networks", "choose", "targets"]


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


def targets(name: str, hellos: Mapping[str, Hello]) -> tuple[ProbeTarget, ...]:
    """Return the targets of a member, by their names.

    Args:
        name: the member's.
        hellos: greetings of the members, by name, the launcher first.
    """
    return tuple(
        ProbeTarget(
            other,
            tuple(found.ip for found in hellos[other].addresses),
            hellos[other].port,
            hellos[other].proof,
        )
        for other in _asked(name, list(hellos))
    )


def _asked(name: str, names: Sequence[str]) -> list[str]:
    index = names.index(name)
    # the first one is the launcher, which all members connect to
    others = [names[(index + step) % len(names)] for step in range(1, min(len(names), _MOST + 1))]
    if name != names[0] and names[0] not in others:
        others.append(names[0])
    return others


def choose(hellos: Mapping[str, Hello], dialled: Mapping[str, ProbeResult]) -> Networks:
    """Choose networks in which all members reach each other.

    Args:
        hellos: greetings of the members, by name, the launcher first.
        dialled: results of the members' probes, by name.

    Raises:
        FiberError: two members cannot reach each other; the text has names, addresses and port.
    """
    asked = {asker: _asked(asker, list(hellos)) for asker in hellos}
    _refuse_unreached(hellos, asked, dialled)
    usable = {name: _usable(name, up, asked, dialled) for name, up in hellos.items()}
    loopback = {name: [a for a in found if _is_loopback(a)] for name, found in usable.items()}
    if all(loopback.values()):
        return Networks({name: found[0] for name, found in loopback.items()}, one_host=True)
    wide = {name: [a for a in found if not _is_loopback(a)] for name, found in usable.items()}
    first = next(iter(hellos))
    for candidate in wide[first]:
        within = {
            name: [a for a in found if a.network == candidate.network]
            for name, found in wide.items()
        }
        if all(within.values()):
            return Networks({name: found[0] for name, found in within.items()}, one_host=False)
    # hosts in networks of their own, with routes between them
    chosen = {name: found[0] for name, found in wide.items() if found}
    missing = [name for name in hellos if name not in chosen]
    if missing:
        msg = f"{', '.join(missing[:_NAMED])} has no address that all other members reach"
        raise FiberError(msg)
    return Networks(chosen, one_host=False)


def _usable(
    name: str,
    up: Hello,
    asked: Mapping[str, Collection[str]],
    dialled: Mapping[str, ProbeResult],
) -> list[Address]:
    """Return the addresses of a member that all which dialled it reached."""
    askers = [other for other, names in asked.items() if other != name and name in names]
    return [
        found
        for found in up.addresses
        if all(found.ip in dialled[asker].reached[name] for asker in askers)
    ]


def _refuse_unreached(
    hellos: Mapping[str, Hello],
    asked: Mapping[str, Collection[str]],
    dialled: Mapping[str, ProbeResult],
) -> None:
    wrong: list[tuple[str, str]] = []
    for asker, names in asked.items():
        wrong += [(asker, other) for other in names if not dialled[asker].reached[other]]
    if not wrong:
        return
    listed = "; ".join(_unreached(asker, other, hellos) for asker, other in wrong[:_NAMED])
    more = f"; and {len(wrong) - _NAMED} more pairs" if len(wrong) > _NAMED else ""
    msg = (
        f"{listed}{more}: MPI needs any port open between all members; open them, or their network"
    )
    raise FiberError(msg)


def _unreached(asker: str, other: str, hellos: Mapping[str, Hello]) -> str:
    up = hellos[other]
    tried: Sequence[str] = [a.ip for a in up.addresses if not _is_loopback(a)]
    where = f"{asker} (on {hellos[asker].host.name}) cannot reach {other} (on {up.host.name})"
    return f"{where} at {', '.join(tried) or 'any address'} port {up.port}"


def _is_loopback(found: Address) -> bool:
    return ipaddress.ip_address(found.ip).is_loopback
