"""An event in another process than its owner's."""

from __future__ import annotations

from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote import RemoteWaited
from fiber._objects.sync.wait_queue import Verdict


class RemoteEvent(RemoteWaited):
    """Every question and every change is answered: what was set is so for everybody on return.

    See :class:`~fiber._objects.sync.handle_actions.Signalling`.
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
