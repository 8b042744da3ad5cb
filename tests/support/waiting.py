"""Waiting for what no event tells."""

import time
from collections.abc import Callable
from typing import Any

#: seconds for what a busy machine may take long to do; nothing waits for them in vain
PATIENCE = 60


def until(condition: Callable[[], Any], *, timeout: float = PATIENCE) -> None:
    """Wait for a state that no event announces, such as the end of somebody else's child."""
    began = time.monotonic()
    deadline = began + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        began = _rest(0.002, began)


def left(look: Callable[[], list[Any]], seconds: float, *, pause: float = 0.01) -> list[Any]:
    """What a look finds: waits until that is nothing, for so many seconds at most."""
    began = time.monotonic()
    deadline = began + seconds
    while (found := look()) and time.monotonic() < deadline:
        # processes that are no children, threads and files have no common event to wait for
        began = _rest(pause, began)
    return found


def _rest(least: float, began: float) -> float:
    """Sleep after a look that began then, twice as long as it took; what is waited for needs the CPU."""
    time.sleep(max(least, min(2 * (time.monotonic() - began), 0.5)))
    return time.monotonic()


def until_steady(look: Callable[[], Any], *, looks: int) -> None:
    """Wait until that many looks in a row have found the same, and not None."""
    found: list[Any] = []

    def is_steady() -> bool:
        found.append(look())
        return found[-1] is not None and found[-looks:] == [found[-1]] * looks

    until(is_steady)
