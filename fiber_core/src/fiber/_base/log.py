"""Fiber's loggers, which import :mod:`logging` only where a program has it or needs it.

To import it and what it needs takes 4 ms, for which a program's first result and each worker would
wait, though as a rule nothing is logged. Nor may it be imported at a program's end: CPython forgets
that an interrupt ended it as soon as a string is evaluated, which modules do when they make a named
tuple, and the exit code would be 1.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

__all__ = ["lazy_logger"]


class _LazyLogger:
    """A logger that does without ``logging`` what that does as long as nobody has set it up.

    It writes warnings and errors to the standard error, and nothing else.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if "logging" not in sys.modules:
            if name in {"debug", "info"}:
                return _ignore
            if name in {"warning", "error", "critical"}:
                return functools.partial(self._write, name)
        import logging

        return getattr(logging.getLogger(self._name), name)

    def _write(self, name: str, message: str, *values: object, exc_info: object = None) -> None:
        if exc_info:
            import logging

            getattr(logging.getLogger(self._name), name)(message, *values, exc_info=exc_info)
        elif sys.stderr is not None:
            sys.stderr.write(f"{message % values if values else message}\n")
            sys.stderr.flush()


def _ignore(_message: str, *_values: object, **_options: object) -> None:
    """Nobody sees these."""


def lazy_logger(name: str = "fiber") -> logging.Logger:
    """The logger of a name.

    Args:
        name: ``fiber``, or one below it.
    """
    lazy: Any = _LazyLogger(name)
    found: logging.Logger = lazy
    return found
