"""Those who wait for a condition, at its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.condition_state import Sleepers
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.wait_queue import Answer, Answers, Request, Verdict

if TYPE_CHECKING:
    from fiber._objects.store import Store


class SharedCondition(Waited):
    """See :class:`~fiber._objects.sync.handle_actions.Waking`."""

    def __init__(self, store: Store) -> None:
        self._sleepers = Sleepers()
        super().__init__(store, Kind.CONDITION, self._sleepers)

    # -- for threads here

    def sleep(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Wait until notified; False if not in time."""
        answer = self.ask(self._sleepers.sleep, timeout, self._undo, release)
        return answer.verdict is Verdict.YES

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake some."""
        with self.lock:
            self.carry(self._sleepers.notify(count))

    def sleepers(self) -> int:
        """How many wait."""
        return len(self._sleepers)

    def _undo(self, answer: Answer) -> Answers:
        return self._sleepers.notify(1) if answer.verdict is Verdict.YES else []

    # -- other processes

    def _asked(self, op: int, request: Request, argument: int) -> Answers | None:
        done = [Answer(request, Verdict.YES, len(self._sleepers))]
        if op == Op.WAIT:
            return self._sleepers.sleep(request)
        if op == Op.NOTIFY:
            return self._sleepers.notify(argument) + (done if request.number else [])
        if op == Op.WOKE:
            self._sleepers.woke(request.party)
            return self._sleepers.notify(1) if argument else []
        return done if op == Op.VALUE else None
