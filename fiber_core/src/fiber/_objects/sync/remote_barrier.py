"""A barrier in another process than its owner's."""

from __future__ import annotations

import functools

from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote import RemoteWaited, Told
from fiber._objects.sync.wait_queue import Verdict


class RemoteBarrier(RemoteWaited):
    """See :class:`~fiber._objects.sync.handle_actions.Gathering`."""

    def arrive(self, timeout: float | None, *, acts: bool) -> tuple[Verdict, int]:
        """One more is there; how it ended, and its place or the number of the action to run."""
        told = self.ask(Op.ARRIVE, acts, timeout, undo=self._undo)
        return told.verdict, told.value

    def ran(self, number: int) -> Verdict:
        """The action went well; how the barrier ended."""
        return self.ask(Op.RAN, 2 * number + 1).verdict

    def failed(self, number: int) -> None:
        """The action did not go well."""
        self.say(Op.RAN, 2 * number)

    def reset(self) -> None:
        """Begin anew; those who wait are told that it broke."""
        self.ask(Op.RESET)

    def abort(self) -> None:
        """Break it."""
        self.ask(Op.ABORT)

    def state(self) -> tuple[bool, int]:
        """True where it is broken; how many wait."""
        told = self.ask(Op.VALUE)
        return told.verdict is Verdict.BROKEN, told.value

    def ending(self, code: int) -> None:
        """This process ends by itself; unless that is normal, it breaks the barrier."""
        if code == 0 and self._error is None:
            self.soon(functools.partial(self.say, Op.ENDING))

    def _undo(self, told: Told) -> None:
        if told.verdict is Verdict.RUN:
            self.failed(told.value)
