"""Fiber's loggers, made when they are used.

To import :mod:`logging` and what it needs takes 4 ms, for which a program's first result and each
worker would wait, though as a rule nothing is logged by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

__all__ = ["lazy_logger"]


class _LazyLogger:
    """A logger's methods and attributes, looked up when they are used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        import logging

        return getattr(logging.getLogger(self._name), name)


def lazy_logger(name: str = "fiber") -> logging.Logger:
    """The logger of a name.

    Args:
        name: ``fiber``, or one below it.
    """
    lazy: Any = _LazyLogger(name)
    found: logging.Logger = lazy
    return found
