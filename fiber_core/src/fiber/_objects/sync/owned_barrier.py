"""A barrier at its owner."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.barrier_state import Gathering
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.wait_queue import Answer, Answers, Request, Verdict

if TYPE_CHECKING:
    from fiber._objects.store import Store


class SharedBarrier(Waited):
    """See :class:`~fiber._objects.sync.handle_actions.Gathering`."""

    def __init__(self, store: Store, parties: int) -> None:
        self._gathering = Gathering(parties)
        super().__init__(store, Kind.BARRIER, self._gathering)

    # -- for threads here

    def arrive(self, timeout: float | None, *, acts: bool) -> tuple[Verdict, int]:
        """One more is there; how it ended, and its place or the number of the action to run."""
        event = functools.partial(self._gathering.arrive, acts=acts)
        answer = self.ask(event, timeout, self._undo)
        return answer.verdict, answer.value

    def ran(self, number: int) -> Verdict:
        """The action went well; how the barrier ended."""
        with self.lock:
            verdict, answers = self._gathering.ran(None, number, well=True)
            self.carry(answers)
        return verdict

    def failed(self, number: int) -> None:
        """The action did not go well."""
        with self.lock:
            self.carry(self._gathering.ran(None, number, well=False)[1])

    def reset(self) -> None:
        """Begin anew; those who wait are told that it broke."""
        with self.lock:
            self.carry(self._gathering.reset())

    def abort(self) -> None:
        """Break it."""
        with self.lock:
            self.carry(self._gathering.abort())

    def state(self) -> tuple[bool, int]:
        """True where it is broken; how many wait."""
        return self._gathering.is_broken, self._gathering.waiting

    def _undo(self, answer: Answer) -> Answers:
        if answer.verdict is not Verdict.RUN:
            return []
        return self._gathering.ran(None, answer.value, well=False)[1]

    # -- other processes

    def _asked(self, op: int, request: Request, argument: int) -> Answers | None:
        gathering = self._gathering
        if op == Op.ARRIVE:
            return gathering.arrive(request, acts=bool(argument))
        if op == Op.RAN:
            number, well = divmod(argument, 2)
            verdict, answers = gathering.ran(request.party, number, well=bool(well))
            return [*answers, Answer(request, verdict)]
        if op == Op.RESET:
            return [*gathering.reset(), Answer(request, Verdict.YES)]
        if op == Op.ABORT:
            return [*gathering.abort(), Answer(request, Verdict.YES)]
        if op == Op.VALUE:
            verdict = Verdict.BROKEN if gathering.is_broken else Verdict.YES
            return [Answer(request, verdict, gathering.waiting)]
        return None
