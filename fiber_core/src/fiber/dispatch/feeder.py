"""Draws a user's iterable into a call, no further ahead than a window."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fiber.dispatch.calls import Call
from fiber.dispatch.master import Dispatcher

#: items drawn ahead of the consumer, at most and at first
LARGEST = 4096
FIRST = 64
#: bytes of arguments drawn ahead, once their size was seen
BYTES = 64 * 2**20
#: items handed over at once while workers have others to do
_BATCH = 64


class Feeder:
    """One thread that draws one iterable; ends with it, with the call, or with :meth:`stop`.

    Args:
        dispatcher: the pool's.
        call: a call that grows.
        iterable: drawn on the feeder's own thread, since it may take its time.
        workers: how many workers there are; the window is never smaller than twice that.
        done: called once the iterable has ended, on the feeder's thread.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        call: Call,
        iterable: Iterable[Any],
        *,
        workers: int,
        done: Callable[[], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._call = call
        self._iterable = iterable
        self._done = done
        self._least = 2 * max(1, workers) * (call.chunksize or 1)
        self._buffer: deque[Any] = deque()
        self._drawn = 0
        self._consumed = 0
        self._stopped = False
        self._room = threading.Condition()
        self._handing = threading.Lock()
        #: what the iterable raised, if it did
        self.error: BaseException | None = None
        #: how many items there are, once all are drawn
        self.total: int | None = None
        self._thread = threading.Thread(target=self._run, name="fiber-feeder", daemon=True)

    def start(self) -> None:
        """Begin to draw."""
        self._thread.start()

    def consumed(self, count: int) -> None:
        """The caller took so many results: there is room for as many more."""
        with self._room:
            self._consumed += count
            self._room.notify()

    def stop(self) -> None:
        """Draw no more; returns at once, since the iterable may be waiting for anything."""
        with self._room:
            self._stopped = True
            self._room.notify()

    def _window(self) -> int:
        size = self._call.item_bytes
        if not size:
            return max(FIRST, self._least)
        return max(self._least, min(LARGEST, int(BYTES / size)))

    def _run(self) -> None:
        try:
            for item in self._iterable:
                with self._handing:
                    self._buffer.append(item)
                self._drawn += 1
                if len(self._buffer) >= _BATCH or self._is_thirsty():
                    self._hand_over(closed=False)
                if not self._wait_for_room():
                    return
        except BaseException as error:
            self.error = error
        self.total = self._drawn
        self._hand_over(closed=True)
        self._done()

    def _is_thirsty(self) -> bool:
        # as many units queued as there are workers keep them busy while more is drawn
        return self._dispatcher.table.queued < self._least

    def flush(self) -> None:
        """Hand over what was drawn; for a consumer that is about to wait."""
        if self._buffer:
            self._hand_over(closed=False)

    def _hand_over(self, *, closed: bool) -> None:
        # the order of hand-overs is the order of the items
        with self._handing:
            items, self._buffer = self._buffer, deque()
            self._dispatcher.extend(self._call, items, closed=closed)

    def _wait_for_room(self) -> bool:
        if self._drawn - self._consumed >= self._window() and self._buffer:
            self._hand_over(closed=False)
        with self._room:
            self._room.wait_for(
                lambda: self._stopped or self._drawn - self._consumed < self._window()
            )
            return not self._stopped
