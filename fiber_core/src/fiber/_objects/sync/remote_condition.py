"""Those who wait for a condition, in another process than its owner's."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote import RemoteWaited, Told
from fiber._objects.sync.wait_queue import Verdict


class RemoteCondition(RemoteWaited):
    """See :class:`~fiber._objects.sync.handle_actions.Waking`."""

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
