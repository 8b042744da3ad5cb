"""``__del__`` methods of objects that may live until the interpreter ends."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["unless_finalizing"]


def unless_finalizing(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Decorator of a ``__del__`` that is skipped while the interpreter ends.

    By then the globals that it uses are None, and the system closes what is open.
    """
    is_finalizing = sys.is_finalizing

    @functools.wraps(method)
    def __del__(self: Any) -> None:  # noqa: N807 - what it becomes
        if not is_finalizing():
            method(self)

    return __del__
