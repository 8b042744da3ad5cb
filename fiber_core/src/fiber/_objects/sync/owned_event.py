"""An event at its owner."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.event_state import Flag
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.wait_queue import Answer, Answers, Request, Verdict

if TYPE_CHECKING:
    from fiber._objects.store import Store


class SharedEvent(Waited):
    """See :class:`~fiber._objects.sync.handle_actions.Signalling`."""

    def __init__(self, store: Store) -> None:
        self._flag = Flag()
        super().__init__(store, Kind.EVENT, self._flag)

    # -- for threads here

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False where it was not in time."""
        if self._flag.is_set:
            return True
        wait = timeout is None or timeout > 0
        answer = self.ask(functools.partial(self._flag.ask, wait=wait), timeout)
        return answer.verdict is Verdict.YES

    def set(self) -> None:
        """Set it; whoever waits goes on."""
        with self.lock:
            self.carry(self._flag.set())

    def clear(self) -> None:
        """Have others wait from now on."""
        with self.lock:
            self._flag.clear()

    def is_set(self) -> bool:
        """True where it is set."""
        return self._flag.is_set

    # -- other processes

    def _asked(self, op: int, request: Request, argument: int) -> Answers | None:
        done = Answer(request, Verdict.YES, int(self._flag.is_set))
        if op == Op.WAIT:
            return self._flag.ask(request, wait=bool(argument))
        if op == Op.SET:
            return [*self._flag.set(), done]
        if op == Op.CLEAR:
            self._flag.clear()
            return [done]
        return [done] if op == Op.VALUE else None
