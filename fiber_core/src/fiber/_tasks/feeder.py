"""Draws a user's iterable into a call, no further ahead than a window."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from fiber._tasks.call import Call
from fiber._tasks.dispatcher import Dispatcher

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
    """

    def __init__(
        self, dispatcher: Dispatcher, call: Call, iterable: Iterable[Any], *, workers: int
    ) -> None:
        self._dispatcher = dispatcher
        self._call = call
        self._iterable: Iterable[Any] | None = iterable
        self._least = 2 * max(1, workers) * (call.chunksize or 1)
        self._buffer: deque[Any] = deque()
        self._drawn = 0
        self._handed = 0
        #: items whose outcomes came, and those of them that were taken
        self._arrived = 0
        self._taken = 0
        self._hurries = False
        self._stopped = False
        self._room = threading.Condition()
        self._handing = threading.Lock()
        #: what the iterable raised, if it did
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fiber-feeder", daemon=True)

    def start(self) -> None:
        """Begin to draw."""
        self._thread.start()

    def arrived(self, count: int) -> None:
        """So many more items have their outcomes."""
        with self._room:
            self._arrived += count
            if self._hurries:
                self._room.notify()

    def taken(self, count: int) -> None:
        """The caller took so many of them: there is room for as many more."""
        with self._room:
            self._taken += count
            self._room.notify()

    def hurry(self) -> None:
        """Go on without the caller: what has its outcome makes room for more."""
        with self._room:
            self._hurries = True
            self._room.notify()

    def stop(self) -> None:
        """Draw no more; returns at once, since the iterable may be waiting for anything."""
        with self._room:
            self._stopped = True
            self._room.notify()

    def flush(self) -> None:
        """Hand over what was drawn; for a consumer that is about to wait."""
        if self._buffer:
            self._hand_over(closed=False)

    def _run(self) -> None:
        try:
            self._draw()
        finally:
            # a generator is closed here, on the thread that ran it
            self._iterable = None

    def _draw(self) -> None:
        assert self._iterable is not None
        try:
            for item in self._iterable:
                with self._handing:
                    self._buffer.append(item)
                    self._drawn += 1
                if len(self._buffer) >= _BATCH or self._is_thirsty():
                    self._hand_over(closed=False)
                if not self._wait_for_room():
                    return
        # raised to the consumer, whatever it is
        except BaseException as error:
            self.error = error
        self._hand_over(closed=True)

    def _is_thirsty(self) -> bool:
        # as many units queued as there are workers keep them busy while more is drawn; but where
        # everything has its outcome the iterable itself may be waiting for that of this item
        return self._dispatcher.table.queued < self._least or self._handed <= self._arrived

    def _hand_over(self, *, closed: bool) -> None:
        # the order of hand-overs is the order of the items
        with self._handing:
            items, self._buffer = self._buffer, deque()
            if not items and not closed:
                # another thread was first, and may have handed over the last
                return
            self._handed += len(items)
            self._dispatcher.extend(self._call, items, closed=closed)

    def _wait_for_room(self) -> bool:
        if not self._has_room():
            self.flush()
        with self._room:
            self._room.wait_for(lambda: self._stopped or self._has_room())
            return not self._stopped

    def _has_room(self) -> bool:
        return self._drawn - (self._arrived if self._hurries else self._taken) < self._window()

    def _window(self) -> int:
        size = self._call.item_bytes
        if not size:
            return max(FIRST, self._least)
        return max(self._least, min(LARGEST, int(BYTES / size)))
