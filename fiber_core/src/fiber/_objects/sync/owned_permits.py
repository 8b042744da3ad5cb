"""A lock or semaphore at its owner."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.holding import Held, Holding
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.permits import Permits
from fiber._objects.sync.protocol import Op, Word
from fiber._objects.sync.wait_queue import TAKEN, Answer, Answers, Request, Verdict

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fiber._objects.store import Store


class SharedPermits(Held, Waited):
    """Its threads take permits without the wire; see :class:`~fiber._objects.sync.handle_actions.Locking`."""

    def __init__(self, store: Store, kind: Kind, permits: Permits) -> None:
        super().__init__(store, kind, permits)
        self._permits = permits
        #: what this process has
        self.mine = Holding(self.shape.name, recursive=kind is Kind.RLOCK)

    # -- for threads here

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Take a permit; False where there is none, or none has come in time."""
        mine = self.mine
        if mine.enter_again():
            return True
        with self.lock:
            if self._permits.take_now(None):
                mine.held += 1
                mine.mark()
                return True
        wait = block and (timeout is None or timeout > 0)
        answer = self.ask(functools.partial(self._permits.ask, wait=wait), timeout, self._undo)
        if answer.verdict in TAKEN:
            mine.mark()
        if answer.text:
            self.warn(answer.verdict, answer.text)
        return answer.verdict is not Verdict.NO

    def release(self) -> None:
        """Give a permit back."""
        mine = self.mine
        if not mine.leave_once():
            return
        with self.lock:
            if mine.held > 0:
                mine.held -= 1
                self.carry(self._permits.release(None))
                return
            outcome, *others = self._give(Request(None))
            self.carry(others)
        if outcome.verdict is Verdict.TOO_MANY:
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def check(self) -> None:
        """Nothing can be lost where the owner is."""

    def value(self) -> int:
        """How many permits can be taken."""
        return self._permits.value

    def carry(self, answers: Answers) -> None:
        """Tell those who wait; what threads here are given is counted at once."""
        self.mine.held += sum(one.request.party is None and one.verdict in TAKEN for one in answers)
        super().carry(answers)

    def _undo(self, answer: Answer) -> Answers:
        if answer.verdict not in TAKEN:
            return []
        self.mine.held -= 1
        return self._permits.untake(None, inherited=answer.verdict is Verdict.INHERITED)

    # -- for threads here and other processes, with the lock held

    def _give(self, request: Request) -> Answers:
        losers, answers = self._permits.give(request)
        for loser in losers:
            self._taken_off(loser)
        return answers

    def _taken_off(self, loser: Hashable) -> None:
        if loser is None:
            self.mine.held -= 1
        else:
            self._tell(loser, Word.TAKEN_OFF)

    def _asked(self, op: int, request: Request, argument: int) -> Answers | None:
        if op == Op.ACQUIRE:
            return self._permits.ask(request, wait=bool(argument))
        if op == Op.RELEASE:
            return self._permits.untake(request.party, inherited=bool(argument))
        if op == Op.GIVE and self.kind is not Kind.RLOCK:
            return self._give(request)
        if op == Op.VALUE:
            return [Answer(request, Verdict.YES, self._permits.value)]
        return None
