"""Brings the members of a round together: whom each dials, and by which address it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fiber._base import values
from fiber._ring.model import Failure, Member, Placement
from fiber._ring.protocol import Address, Hello, Probed, Target

__all__ = ["Unreachable", "by_rank", "choose", "members", "targets"]

_LOOPBACK = "127."
#: pairs that a message names
_NAMED = 3


@values.frozen
class Unreachable:
    """The members do not all reach each other."""

    failure: Failure


def by_rank(
    placements: Sequence[Placement], hellos: Mapping[int, Sequence[Hello]]
) -> tuple[Hello, ...]:
    """What the members said, in the order of their ranks."""
    return tuple(hello for placement in placements for hello in hellos[placement.worker])


def _candidates(hellos: Sequence[Hello], index: int, may_grow: bool) -> tuple[Address, ...]:
    """By which addresses a member may be known: loopback where all are on one host, else not."""
    one_host = len({hello.host.key for hello in hellos}) == 1
    found = hellos[index].addresses
    loopback = tuple(address for address in found if address.ip.startswith(_LOOPBACK))
    others = tuple(address for address in found if address not in loopback)
    if not one_host:
        return others
    # who joins later may be elsewhere
    return (others + loopback if may_grow else loopback + others)[:1]


def targets(hellos: Sequence[Hello], index: int, *, may_grow: bool = False) -> tuple[Target, ...]:
    """Whom the member at a position dials; itself not.

    Args:
        hellos: what the members said, by rank.
        index: the position.
        may_grow: True where members on other hosts may join later.
    """
    return tuple(
        Target(
            other,
            tuple(a.ip for a in _candidates(hellos, other, may_grow)),
            hellos[other].port,
            hellos[other].proof,
        )
        for other in range(len(hellos))
        if other != index
    )


def choose(
    hellos: Sequence[Hello], probed: Sequence[Probed], *, may_grow: bool = False
) -> tuple[Address, ...] | Unreachable:
    """The address of each member that all others reached; the first in its own order."""
    chosen = []
    for index in range(len(hellos)):
        others = [found for dialler, found in enumerate(probed) if dialler != index]
        for address in _candidates(hellos, index, may_grow):
            if all(address.ip in found.reached.get(index, ()) for found in others):
                chosen.append(address)
                break
        else:
            tried = [address.ip for address in _candidates(hellos, index, may_grow)]
            return Unreachable(_why(hellos, probed, index, ", ".join(tried) or "no address"))
    return tuple(chosen)


def _why(hellos: Sequence[Hello], probed: Sequence[Probed], index: int, tried: str) -> Failure:
    target = hellos[index]
    there = f"member {index} ({target.host.name}) at port {target.port}"
    cut_off = [
        (dialler, found)
        for dialler, found in enumerate(probed)
        if dialler != index and not found.reached.get(index)
    ]
    if not cut_off:
        text = f"no address of {there} is reached by all others; it has {tried}"
    else:
        pairs = "; ".join(
            f"member {dialler} ({hellos[dialler].host.name}) cannot reach {there}: "
            f"{found.failures.get(index, f'it has {tried}')}"
            for dialler, found in cut_off[:_NAMED]
        )
        more = f"; and {len(cut_off) - _NAMED} more" if len(cut_off) > _NAMED else ""
        text = f"{pairs}{more}; open the network between these hosts"
    return Failure(reason="Unreachable", message=text, host=target.host.name)


def members(
    placements: Sequence[Placement], hellos: Sequence[Hello], chosen: Sequence[Address]
) -> tuple[Member, ...]:
    """All members, by rank."""
    found = []
    for placement in placements:
        for slot, rank in enumerate(placement.ranks):
            found.append(
                Member(
                    rank=rank,
                    ip=chosen[rank].ip,
                    port=hellos[rank].port,
                    host=placement.host.name,
                    local_rank=placement.local_rank + slot,
                    local_size=placement.local_size,
                    node=placement.node,
                    nodes=placement.nodes,
                    interface=chosen[rank].interface,
                )
            )
    return tuple(found)
