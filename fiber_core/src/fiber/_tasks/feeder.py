"""Draws the iterable of an ``imap`` into its call, no further ahead than a window."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from fiber._tasks.call import Call
from fiber._tasks.dispatcher import Dispatcher

#: items drawn ahead of the consumer, at most and at first
MAX_AHEAD = 4096
INITIAL_AHEAD = 64
#: bytes of arguments drawn ahead, once their size was seen
MAX_AHEAD_BYTES = 64 * 2**20
#: items added to the call at once while workers have other work
_BATCH = 64


class Feeder:
    """Thread that draws one iterable; ends with it, with the call, or with :meth:`stop`.

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
        self._added = 0
        #: items whose outcomes came, and those of them that were taken
        self._arrived = 0
        self._taken = 0
        self._draining = False
        self._stopped = False
        self._room = threading.Condition()
        self._adding = threading.Lock()
        #: what the iterable raised, if it did
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fiber-feeder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def arrived(self, count: int) -> None:
        """Note that ``count`` more items have their outcomes."""
        with self._room:
            self._arrived += count
            if self._draining:
                self._room.notify()

    def taken(self, count: int) -> None:
        """Note that the caller took ``count`` outcomes: there is room for as many more items."""
        with self._room:
            self._taken += count
            self._room.notify()

    def drain(self) -> None:
        """Draw to the end without the caller: outcomes make room even if they are not taken."""
        with self._room:
            self._draining = True
            self._room.notify()

    def stop(self) -> None:
        """Draw no more; returns at once, since the iterable may be waiting for something."""
        with self._room:
            self._stopped = True
            self._room.notify()

    def flush(self) -> None:
        """Add the items drawn so far to the call; for a consumer that is about to wait."""
        if self._buffer:
            self._add_drawn(closed=False)

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
                with self._adding:
                    self._buffer.append(item)
                    self._drawn += 1
                if len(self._buffer) >= _BATCH or self._workers_lack_work():
                    self._add_drawn(closed=False)
                if not self._wait_for_room():
                    return
        # whatever it is, the consumer gets it
        except BaseException as error:
            self.error = error
        self._add_drawn(closed=True)

    def _workers_lack_work(self) -> bool:
        # as many units queued as there are workers keep them busy while more is drawn; but where
        # everything has its outcome the iterable itself may be waiting for that of this item
        return self._dispatcher.table.queued < self._least or self._added <= self._arrived

    def _add_drawn(self, *, closed: bool) -> None:
        # items are added to the call in the order in which they were drawn
        with self._adding:
            items, self._buffer = self._buffer, deque()
            if not items and not closed:
                # another thread was first, and may have added the last
                return
            self._added += len(items)
            self._dispatcher.extend(self._call, items, closed=closed)

    def _wait_for_room(self) -> bool:
        if not self._has_room():
            self.flush()
        with self._room:
            self._room.wait_for(lambda: self._stopped or self._has_room())
            return not self._stopped

    def _has_room(self) -> bool:
        return self._drawn - (self._arrived if self._draining else self._taken) < self._window()

    def _window(self) -> int:
        size = self._call.item_bytes
        if not size:
            return max(INITIAL_AHEAD, self._least)
        return max(self._least, min(MAX_AHEAD, int(MAX_AHEAD_BYTES / size)))
