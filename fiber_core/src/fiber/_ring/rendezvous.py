"""Brings the members of a round together: whom each dials, and by which address it is known.

One round of a ring: who said what while it forms, and what its survivors could go on from.

A newcomer to a round that runs: do those that are there reach it, and what do they know?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._ring.model import Failure, Member, Placement
from fiber._ring.protocol import Address, Changed, Hello, Meet, Met, Probe, Probed, Target, Tell
from fiber._ring.workers import Worker

if TYPE_CHECKING:
    from fiber._ring.workers import Worker

__all__ = ["Admission", "Newcomer", "Unreachable", "by_rank", "choose", "members", "targets"]

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


class Round:
    """Brings the workers of one round together, and keeps what they are told.

    Args:
        number: which one.
        restarts: how many times all ranks were started again before it.
        placements: who has which ranks.
        team: all workers.
        bounds: fewest and most ranks, where these may change while ranks run.
    """

    def __init__(
        self,
        number: int,
        restarts: int,
        placements: Sequence[Placement],
        team: Mapping[int, Worker],
        bounds: tuple[int, int] | None,
    ) -> None:
        self.number = number
        self.placements = tuple(placements)
        #: what the member that hosts something told
        self.facts: Mapping[str, Any] = {}
        #: everybody, once they know each other
        self.members: tuple[Member, ...] = ()
        self._restarts = restarts
        self._team = team
        self._bounds = bounds
        self._changes = 0
        #: workers that joined while it ran, and have not begun
        self._joining: set[int] = set()
        #: by which address each rank is known
        self._chosen: tuple[Address, ...] = ()
        #: what they said of themselves, by rank
        self.hellos: tuple[Hello, ...] = by_rank(
            placements,
            {
                place.worker: [team[place.worker].hellos[slot] for slot in range(place.slots)]
                for place in placements
            },
        )
        self._probed: dict[int, Probed] = {}
        self._met: set[int] = set()
        #: worker and slot of those who are asked what they committed last, while they are
        self._asked: set[tuple[int, int]] = set()

    def targets(self, hellos: Sequence[Hello], index: int) -> tuple[Target, ...]:
        """Whom the member at a position dials."""
        return targets(hellos, index, may_grow=self._bounds is not None)

    def rank_of(self, worker: int, slot: int | None) -> int | None:
        """The rank of a worker's slot; None where it has none in this round."""
        for place in self.placements:
            if place.worker == worker and slot is not None:
                return place.first_rank + slot
        return None

    def dial(self) -> None:
        """Have each member dial the others."""
        for worker, slot, rank in self.ranks():
            worker.send_to(slot, Probe(self.targets(self.hellos, rank)))

    def probed(self, worker: int, slot: int, found: Probed) -> Failure | None:
        """What a member found; once all have told, they meet, or this is why they do not."""
        rank = self.rank_of(worker, slot)
        if rank is None:
            return None
        self._probed[rank] = found
        if len(self._probed) < len(self.hellos):
            return None
        told = [self._probed[rank] for rank in range(len(self.hellos))]
        chosen = choose(self.hellos, told, may_grow=self._bounds is not None)
        if isinstance(chosen, Unreachable):
            return chosen.failure
        self._chosen = chosen
        self.members = members(self.placements, self.hellos, chosen)
        for member, its_slot, rank in self.ranks():
            member.send_to(its_slot, self._meet(rank, hosts=rank == 0))
        return None

    def change(self, placements: Sequence[Placement], came: Sequence[Newcomer]) -> None:
        """Other workers have its ranks from now on, and all are told.

        Args:
            placements: who has which ranks.
            came: the ranks of the one worker that was not there before, if there is one.
        """
        known = {
            (place.worker, slot): (self.hellos[rank], self._chosen[rank])
            for place in self.placements
            for slot, rank in enumerate(place.ranks)
        }
        new = [place.worker for place in placements if place.worker not in self.workers]
        known |= {
            (number, slot): (one.hello, one.address)
            for number in new
            for slot, one in enumerate(came)
        }
        self.placements, self._changes = tuple(placements), self._changes + 1
        seats = [(place.worker, slot) for place in placements for slot in range(place.slots)]
        self.hellos = tuple(known[seat][0] for seat in seats)
        self._chosen = tuple(known[seat][1] for seat in seats)
        self.members = members(self.placements, self.hellos, self._chosen)
        for worker, slot, rank in self.ranks():
            if worker.number in new:
                worker.send_to(slot, self._meet(rank, hosts=False))
            else:
                worker.send_to(slot, Changed(rank=rank, members=self.members, change=self._changes))
        self._joining.update(new)

    @property
    def workers(self) -> frozenset[int]:
        """The workers that have its ranks."""
        return frozenset(place.worker for place in self.placements)

    def is_joining(self, worker: int) -> bool:
        """True for one that joined while the round ran."""
        return worker in self._joining

    def _meet(self, rank: int, *, hosts: bool) -> Meet:
        return Meet(
            rank=rank,
            members=self.members,
            round=self.number,
            restarts=self._restarts,
            hosts=hosts,
            bounds=self._bounds,
            change=self._changes,
        )

    def met(self, worker: int, slot: int, message: Met) -> bool:
        """A member knows the others; True once all do, and none answers at its port any more."""
        rank = self.rank_of(worker, slot)
        if rank is None:
            return False
        self._met.add(rank)
        if rank == 0:
            self.facts = message.facts
        return len(self._met) == len(self.hellos)

    def results(self) -> list[bytes]:
        """What each rank returned, pickled, by rank."""
        return [worker.returned[slot] for worker, slot, _ in self.ranks()]

    def ask(self, workers: Sequence[int]) -> None:
        """Ask some workers what they committed last."""
        for number in workers:
            worker = self._team[number]
            worker.kept.clear()
            self._asked |= {(number, slot) for slot in range(worker.group.slots)}
            worker.send(Tell())

    def is_answered(self) -> bool:
        """True, once, when everybody who was asked and is still there has answered."""
        if not self._asked:
            return False
        self._asked = {
            (number, slot)
            for number, slot in self._asked
            if slot not in self._team[number].kept and slot not in self._team[number].silent
        }
        return not self._asked

    def newest(self) -> tuple[int, bytes] | None:
        """The newest state that anybody told, of the lowest rank where several are as new."""
        best: tuple[int, bytes] | None = None
        for worker, slot, _ in self.ranks():
            kept = worker.kept.get(slot)
            if kept is not None and kept.state is not None and (not best or kept.step > best[0]):
                best = kept.step, kept.state
        return best

    def ranks(self) -> list[tuple[Worker, int, int]]:
        """Worker, slot and rank of each that is still there, by rank."""
        return [
            (self._team[place.worker], slot, rank)
            for place in self.placements
            if place.worker in self._team
            for slot, rank in enumerate(place.ranks)
        ]


#: slots that a worker may have, for numbers that tell all targets of a ring apart
_SLOTS = 1 << 16


@values.frozen
class Newcomer:
    """A rank that joins, and by which address the others reach it."""

    hello: Hello
    address: Address


class Admission:
    """One worker that wants to join.

    Args:
        current: the round.
        worker: who.
        team: all workers.
    """

    def __init__(self, current: Round, worker: Worker, team: Mapping[int, Worker]) -> None:
        self.worker = worker
        self._round = current
        self._team = team
        self._slots = [worker.hellos[slot] for slot in range(worker.group.slots)]
        self._targets = tuple(self._target(slot) for slot in range(worker.group.slots))
        self._asked: set[tuple[int, int]] = set()
        self._found: dict[tuple[int, int], Probed] = {}
        self._is_decided = False

    def _target(self, slot: int) -> Target:
        """A rank of the newcomer as all others are to dial it."""
        everybody = [*self._round.hellos, *self._slots]
        position = len(self._round.hellos) + slot
        target = self._round.targets(everybody, 0)[position - 1]
        return values.evolve(target, index=self.worker.number * _SLOTS + slot)

    def ask(self) -> None:
        """Have those that run dial it, and say what they committed last."""
        for worker, slot, _ in self._round.ranks():
            worker.kept.pop(slot, None)
            self._asked.add((worker.number, slot))
            worker.send_to(slot, Probe(self._targets))
            worker.send_to(slot, Tell())

    def probed(self, worker: Worker, slot: int, found: Probed) -> None:
        """What one of them found; of an earlier newcomer, nothing."""
        if all(target.index in found.reached for target in self._targets):
            self._found[worker.number, slot] = found

    def is_answered(self) -> bool:
        """True, once, when everybody who was asked and is still there has answered."""
        if self._is_decided or any(self._is_waiting(*one) for one in self._asked):
            return False
        self._is_decided = True
        return True

    def _is_waiting(self, number: int, slot: int) -> bool:
        worker = self._team[number]
        if slot in worker.silent or number not in self._round.workers:
            return False
        done = slot in worker.returned or slot in worker.raised
        return not done and (slot not in worker.kept or (number, slot) not in self._found)

    @property
    def hellos(self) -> tuple[Newcomer, ...]:
        """Its ranks, each with the address that all others reached."""
        found = []
        for target, hello in zip(self._targets, self._slots, strict=True):
            best = self._reached(target)
            assert best is not None, "who was not reached is not admitted"
            found.append(Newcomer(hello, next(a for a in hello.addresses if a.ip == best)))
        return tuple(found)

    def failure(self) -> Failure | None:
        """Why it cannot join, if so."""
        for target, hello in zip(self._targets, self._slots, strict=True):
            if self._reached(target) is None:
                why = [told.failures.get(target.index) for told in self._found.values()]
                told = next((one for one in why if one), f"none of {', '.join(target.ips)}")
                text = f"members cannot reach {hello.host.name} at port {target.port}: {told}"
                return Failure(reason="Unreachable", message=text, host=hello.host.name)
        return None

    def _reached(self, target: Target) -> str | None:
        """The first address by which everybody who looked reached it."""
        found = list(self._found.values())
        for ip in target.ips:
            if all(ip in told.reached[target.index] for told in found):
                return ip
        return None
