"""Waits that a signal ends: a program in ``get()`` or ``join()`` ends at Ctrl-C, whenever that comes.

CPython runs the handlers of signals on the main thread, between two instructions. A call that waits is
interrupted by a signal that arrives during it. One that arrives just before, while the thread gives up
the GIL, or that the system delivers to another thread, is not noticed before the call returns. A wait
without an end would then be for ever.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")

#: longest time of one call that waits, in seconds
TURN = 1.0


def in_turns(wait: Callable[[float], bool], timeout: float | None = None) -> bool:
    """Wait in turns of :data:`TURN`; False when ``timeout`` seconds have passed.

    Args:
        wait: waits so many seconds at most; returns False when they have passed.
        timeout: seconds; None for any number.
    """
    if timeout is None:
        while not wait(TURN):
            pass
        return True
    if timeout > TURN:
        end = time.monotonic() + timeout
        while timeout > TURN:
            if wait(TURN):
                return True
            timeout = max(0.0, end - time.monotonic())
    return wait(timeout)


def turn(left: float | None) -> float:
    """Seconds of one turn of a loop that looks at its condition and at the time that is left."""
    return TURN if left is None or left > TURN else left


def next_item(items: queue.SimpleQueue[_Item], until: float | None = None) -> _Item | None:
    """Take an item in turns, so that what a handler of signals puts is taken; None from ``until`` on.

    Args:
        items: the queue; a handler may put into it, in the middle of this.
        until: time on the monotonic clock; None for any.
    """
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            return items.get(timeout=turn(left))
        except queue.Empty:
            if left is not None and left <= TURN:
                return None


@contextlib.contextmanager
def ending_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Call a function on the main thread with each signal that would end this process, in the block.

    Signals that are ignored stay so, as under nohup.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: handle(got)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
