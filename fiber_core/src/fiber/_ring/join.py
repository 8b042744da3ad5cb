"""A newcomer to a round that runs: do those that are there reach it, and what do they know?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._ring.model import Failure
from fiber._ring.protocol import Address, Hello, Probe, Probed, Target, Tell

if TYPE_CHECKING:
    from fiber._ring.attempt import Round
    from fiber._ring.workers import Worker

__all__ = ["Admission", "Newcomer"]

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
