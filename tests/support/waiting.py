"""Waiting for what no event tells."""

import time
from collections.abc import Callable
from typing import Any

#: seconds for what a busy machine may take long to do; nothing waits for them in vain
PATIENCE = 60


def until(condition: Callable[[], Any], *, timeout: float = PATIENCE) -> None:
    """Wait for a state that no event announces, such as the end of somebody else's child."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)
