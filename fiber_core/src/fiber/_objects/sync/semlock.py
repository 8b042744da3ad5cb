"""What locks and semaphores have in common for the user."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from fiber._objects import store
from fiber._objects.address import Kind
from fiber._objects.sync.handle_actions import Locking
from fiber._objects.sync.owned_permits import SharedPermits
from fiber._objects.sync.permits import Permits
from fiber._objects.sync.waitable import Waitable
from fiber._wire import fork
from fiber.exceptions import HolderDiedError, HolderDiedWarning

#: most permits of a semaphore; that of ``multiprocessing``
SEM_VALUE_MAX = 2**31 - 1


class SemLock(Waitable[Locking]):
    """A handle of permits, held until it is collected."""

    def _make(self, kind: Kind, permits: Permits) -> None:
        self._own(SharedPermits(store.current(), kind, permits))

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it; wait for it.

        Args:
            block: False to take it only where that is possible now.
            timeout: seconds to wait; negative ones are none, None is any number.

        Returns:
            False where it was not to be had (in time).

        Raises:
            HolderDiedError: a process died with it, and ``on_holder_death`` is "raise".
            LeaseLostError: this process had it when the connection to its owner was lost.
            PeerLostError: the process that it lives in is gone.
        """
        if fork.is_stranger():
            fork.check()
        return self._object.acquire(block, timeout)

    def release(self) -> None:
        """Give it back.

        Raises:
            AssertionError: a recursive lock that another thread has.
            ValueError: it was released too many times.
            LeaseLostError: this process had it when the connection to its owner was lost.
            PeerLostError: the process that it lives in is gone.
        """
        if fork.is_stranger():
            fork.check()
        self._object.release()

    if sys.version_info >= (3, 14):

        def locked(self) -> bool:
            """True where it could not be taken now."""
            return not self._value()

    def __enter__(self) -> bool:
        if fork.is_stranger():
            fork.check()
        return self._object.acquire(True, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _value(self) -> int:
        return self._there().value()

    # -- for conditions

    def _is_mine(self) -> bool:
        return self._object.mine.is_mine

    def _release_save(self) -> int:
        return self._object.release_fully()

    def _acquire_restore(self, depth: int) -> None:
        news = None
        # an interrupt may have come before it was released
        while not self._is_mine():
            try:
                self._object.acquire(True, None)
            except (HolderDiedError, HolderDiedWarning) as error:
                # whoever waits has the lock again whatever happens
                news = error
        self._object.mine.entered_fully(depth)
        if news is not None:
            raise news

    # -- for people

    def _owner_name(self) -> tuple[str, Any]:
        """Who has it, and how often."""
        from fiber.process import current_process

        mine = self._object.mine
        if mine.is_mine:
            import threading

            thread = threading.current_thread().name
            name = current_process().name
            return (name if thread == "MainThread" else f"{name}|{thread}"), mine.count
        if self._value():
            return "None", 0
        return ("SomeOtherThread" if mine.held > 0 else "SomeOtherProcess"), "nonzero"
