"""One round of a ring: who said what while it forms, and what its survivors could go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fiber._ring import formation
from fiber._ring.join import Newcomer
from fiber._ring.model import Failure, Member, Placement
from fiber._ring.protocol import Address, Changed, Hello, Meet, Met, Probe, Probed, Target, Tell
from fiber._ring.workers import Worker


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
        self.hellos: tuple[Hello, ...] = formation.by_rank(
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
        return formation.targets(hellos, index, may_grow=self._bounds is not None)

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
        chosen = formation.choose(self.hellos, told, may_grow=self._bounds is not None)
        if isinstance(chosen, formation.Unreachable):
            return chosen.failure
        self._chosen = chosen
        self.members = formation.members(self.placements, self.hellos, chosen)
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
        self.members = formation.members(self.placements, self.hellos, self._chosen)
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
