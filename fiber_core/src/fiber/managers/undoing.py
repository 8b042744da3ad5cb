"""What a manager takes back where a caller died while it waited: items it got, locks it took."""

from __future__ import annotations

import queue
import threading
from typing import Any

_LOCKS = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Semaphore,
)


def undo(thing: Any, name: str, value: Any) -> None:
    """Take back what a method did; on the thread that called it.

    Args:
        thing: the object; only those of the standard library's types are known.
        name: the method's name.
        value: what it returned.
    """
    if type(thing) is queue.Queue and name in {"get", "get_nowait"}:
        with thing.mutex:
            # where it was, before whatever came after it; it still counts as unfinished
            thing.queue.appendleft(value)
            thing.not_empty.notify()
    # whoever waits for a condition has the lock again, notified or not
    waited = name == "wait" and isinstance(thing, threading.Condition)
    if waited or (name == "acquire" and value and isinstance(thing, _LOCKS)):
        thing.release()
