"""Functions too large to be sent to each worker: laid once into memory that workers here map."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fiber._tasks.broadcast import KEPT, LARGE, Laid, Memory
from fiber._tasks.shared_payload import Repeated

if TYPE_CHECKING:
    from fiber._tasks.call import Call
    from fiber._tasks.session import Session


class Large:
    """Those of one pool.

    Args:
        memory: where they are laid; None for nowhere.
        kept: bytes of those without a call that are kept.
    """

    def __init__(self, memory: Memory | None, kept: int = KEPT) -> None:
        self._memory = memory
        self._kept = kept
        self._lock = threading.Lock()
        self._used: dict[bytes, tuple[Laid, int]] = {}
        self._idle: OrderedDict[bytes, Laid] = OrderedDict()
        self._closed = False

    def lay(self, call: Call, sessions: Mapping[str, Session]) -> None:
        """Lay a call's function if it is large and some worker may map it, its arguments later.

        Args:
            call: the call; its function is what was laid from now on.
            sessions: the workers that there are so far.
        """
        if self._memory is None:
            return
        if call.count > 1:
            call.repeated = Repeated(self._memory)
        size = sum(map(len, call.function))
        if size < LARGE:
            return
        there = list(sessions.values())
        if there and not any(session.is_near for session in there):
            return
        with self._lock:
            if self._closed:
                return
            laid, calls = self._used.get(call.digest, (None, 0))
            laid = laid or self._idle.pop(call.digest, None) or self._memory.lay(call.function)
            if laid is not None:
                self._used[call.digest] = laid, calls + 1
                call.laid, call.function = laid, [laid.view()]

    def let_go(
        self, call: Call, calls: Mapping[int, Call], sessions: Mapping[str, Session]
    ) -> None:
        """A call is done: have workers forget what is not needed again.

        Args:
            call: the call.
            calls: those that are left.
            sessions: the workers.
        """
        if call.repeated is not None:
            call.repeated.close()
        # what it refers to is held by each worker that has it
        refers = call.release()
        if call.laid is None and not refers:
            return
        gone = self._release(call, keep=not refers)
        if refers:
            gone.append(call.digest)
        for digest in set(gone):
            if all(other.digest != digest for other in calls.values()):
                for session in sessions.values():
                    session.forget(digest)

    def _release(self, call: Call, *, keep: bool) -> list[bytes]:
        """A call has its function no more; digests of those that were dropped."""
        with self._lock:
            laid, call.laid = call.laid, None
            if laid is None:
                return []
            found, count = self._used.pop(call.digest)
            if count > 1:
                self._used[call.digest] = found, count - 1
                return []
            if self._closed or not keep:
                found.close()
                return [call.digest]
            self._idle[call.digest] = found
            gone = []
            while self._is_over():
                digest, idle = self._idle.popitem(last=False)
                idle.close()
                gone.append(digest)
            return gone

    def _is_over(self) -> bool:
        return len(self._idle) > 1 and sum(one.size for one in self._idle.values()) > self._kept

    def close(self) -> None:
        """Keep nothing any more; idempotent."""
        with self._lock:
            self._closed = True
            laid = [*self._idle.values(), *(one for one, _ in self._used.values())]
            self._idle.clear()
            for one in laid:
                one.close()
