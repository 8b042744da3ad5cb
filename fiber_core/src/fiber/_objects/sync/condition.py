"""Those who wait to be notified: the state of a condition; pure.

A notification belongs to the owner until the process that it was sent to has said that it came: if
that process is gone, the next one is woken in its place.

Those who wait for a condition, at its owner.

Those who wait for a condition, in another process than its owner's.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote import RemoteWaited, Told
from fiber._objects.sync.wait_queue import Answer, Answers, Line, Request, Verdict

if TYPE_CHECKING:
    from fiber._objects.store import Store


class Sleepers:
    """The state of one condition, but for its lock. Not thread-safe."""

    def __init__(self) -> None:
        self._line = Line()
        # notifications on their way, by process
        self._under_way: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._line)

    def sleep(self, request: Request) -> Answers:
        """Somebody waits."""
        self._line.add(request)
        return []

    def notify(self, count: int) -> Answers:
        """Wake those who have waited for longest."""
        out: Answers = []
        while len(out) < count and len(self._line):
            request = self._line.first()
            if request.party is not None:
                self._under_way[request.party] += 1
            out.append(Answer(request, Verdict.YES))
        return out

    def woke(self, party: Hashable) -> None:
        """A notification has come."""
        if self._under_way[party] > 1:
            self._under_way[party] -= 1
        else:
            del self._under_way[party]

    def cancel(self, party: Hashable, number: int, *, expired: bool = False) -> Answers:
        """A request is to be answered now; nothing where it was."""
        request = self._line.remove(party, number)
        return [] if request is None else [Answer(request, Verdict.NO)]

    def leave(self, party: Hashable, held: int) -> Answers:
        """A process ends normally."""
        self._line.remove_all(party)
        return self.notify(self._under_way.pop(party, 0))

    def lose(self, party: Hashable, who: str) -> Answers:
        """A process died."""
        return self.leave(party, 0)


class SharedCondition(Waited):
    """See :class:`~fiber.synchronize.Waking`."""

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


class RemoteCondition(RemoteWaited):
    """See :class:`~fiber.synchronize.Waking`."""

    def sleep(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Wait, call ``release`` once that is known, until notified; False if not in time."""
        after = functools.partial(self._release, release) if certain else release
        told = self.ask(Op.WAIT, 0, timeout, undo=self._undo, after=after)
        if told.verdict is not Verdict.YES:
            return False
        self.say(Op.WOKE)
        return True

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake some; ``certain`` where that must be done on return."""
        if certain:
            self.ask(Op.NOTIFY, count)
        else:
            self.say(Op.NOTIFY, count)

    def sleepers(self) -> int:
        """How many wait."""
        return self.ask(Op.VALUE).value

    def _release(self, release: Callable[[], object]) -> None:
        # whoever takes the lock next, elsewhere, must find us waiting
        self.sync()
        release()

    def _undo(self, told: Told) -> None:
        if told.verdict is Verdict.YES:
            self.say(Op.WOKE, 1)

    def ending(self, code: int) -> None:
        """This process ends by itself: it waits no more."""
        if self._error is None and self._asked:
            self.soon(functools.partial(self.say, Op.ENDING))
