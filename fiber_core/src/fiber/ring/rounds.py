"""One round of a ring: who said what while it forms, and what its survivors could go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fiber.ring import formation
from fiber.ring.messages import Hello, Meet, Met, Probe, Probed, Tell
from fiber.ring.model import Failure, Member, Placement
from fiber.ring.team import Worker


class Round:
    """Brings the workers of one round together, and keeps what they are told.

    Args:
        number: which one.
        restarts: how many times all ranks were started again before it.
        placements: who has which ranks.
        team: all workers.
    """

    def __init__(
        self,
        number: int,
        restarts: int,
        placements: Sequence[Placement],
        team: Mapping[int, Worker],
    ) -> None:
        self.number = number
        self.placements = tuple(placements)
        #: what the member that hosts something told
        self.facts: Mapping[str, Any] = {}
        #: everybody, once they know each other
        self.members: tuple[Member, ...] = ()
        self._restarts = restarts
        self._team = team
        self._hellos: tuple[Hello, ...] = formation.by_rank(
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

    def rank_of(self, worker: int, slot: int | None) -> int | None:
        """The rank of a worker's slot; None where it has none in this round."""
        for place in self.placements:
            if place.worker == worker and slot is not None:
                return place.first_rank + slot
        return None

    def dial(self) -> None:
        """Have each member dial the others."""
        for worker, slot, rank in self._ranks():
            worker.send_to(slot, Probe(formation.targets(self._hellos, rank)))

    def probed(self, worker: int, slot: int, found: Probed) -> Failure | None:
        """What a member found; once all have told, they meet, or this is why they do not."""
        rank = self.rank_of(worker, slot)
        if rank is None:
            return None
        self._probed[rank] = found
        if len(self._probed) < len(self._hellos):
            return None
        told = [self._probed[rank] for rank in range(len(self._hellos))]
        chosen = formation.choose(self._hellos, told)
        if isinstance(chosen, formation.Unreachable):
            return chosen.failure
        self.members = formation.members(self.placements, self._hellos, chosen)
        for member, its_slot, rank in self._ranks():
            member.send_to(
                its_slot,
                Meet(
                    rank=rank,
                    members=self.members,
                    round=self.number,
                    restarts=self._restarts,
                    hosts=rank == 0,
                ),
            )
        return None

    def met(self, worker: int, slot: int, message: Met) -> bool:
        """A member knows the others; True once all do, and none answers at its port any more."""
        rank = self.rank_of(worker, slot)
        if rank is None:
            return False
        self._met.add(rank)
        if rank == 0:
            self.facts = message.facts
        return len(self._met) == len(self._hellos)

    def results(self) -> list[bytes]:
        """What each rank returned, pickled, by rank."""
        return [worker.returned[slot] for worker, slot, _ in self._ranks()]

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
        for worker, slot, _ in self._ranks():
            kept = worker.kept.get(slot)
            if kept is not None and kept.state is not None and (not best or kept.step > best[0]):
                best = kept.step, kept.state
        return best

    def _ranks(self) -> list[tuple[Worker, int, int]]:
        """Worker, slot and rank of each that is still there, by rank."""
        return [
            (self._team[place.worker], slot, rank)
            for place in self.placements
            if place.worker in self._team
            for slot, rank in enumerate(place.ranks)
        ]
