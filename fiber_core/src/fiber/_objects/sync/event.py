"""Something that is so or not, and who waits until it is: the state of an event; pure.

An event at its owner.

An event in another process than its owner's.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote import RemoteWaited
from fiber._objects.sync.wait_queue import Answer, Answers, Line, Request, Verdict

if TYPE_CHECKING:
    from fiber._objects.store import Store


class Flag:
    """The state of one event. Not thread-safe."""

    def __init__(self) -> None:
        #: True where nobody has to wait
        self.is_set = False
        self._line = Line()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    def ask(self, request: Request, *, wait: bool) -> Answers:
        """Somebody wants to know, or to hear when it is set."""
        if self.is_set or not wait:
            return [Answer(request, Verdict.YES if self.is_set else Verdict.NO)]
        self._line.add(request)
        return []

    def set(self) -> Answers:
        """Set it. All that wait now go on, though it is cleared at once."""
        self.is_set = True
        return [Answer(request, Verdict.YES) for request in self._line.clear()]

    def clear(self) -> None:
        """Unset it."""
        self.is_set = False

    def cancel(self, party: Hashable, number: int, *, expired: bool = False) -> Answers:
        """A request is to be answered now; nothing where it was."""
        request = self._line.remove(party, number)
        return [] if request is None else [Answer(request, Verdict.NO)]

    def leave(self, party: Hashable, held: int) -> Answers:
        """A process ends normally."""
        self._line.remove_all(party)
        return []

    def lose(self, party: Hashable, who: str) -> Answers:
        """A process died."""
        self._line.remove_all(party)
        return []


class SharedEvent(Waited):
    """See :class:`~fiber.synchronize.Signalling`."""

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


class RemoteEvent(RemoteWaited):
    """Every question and every change is answered: what was set is so for everybody on return.

    See :class:`~fiber.synchronize.Signalling`.
    """

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False where it was not in time."""
        wait = timeout is None or timeout > 0
        return self.ask(Op.WAIT, wait, timeout if wait else None).verdict is Verdict.YES

    def set(self) -> None:
        """Set it; whoever waits goes on."""
        self.ask(Op.SET)

    def clear(self) -> None:
        """Have others wait from now on."""
        self.ask(Op.CLEAR)

    def is_set(self) -> bool:
        """True where it is set."""
        return bool(self.ask(Op.VALUE).value)
