"""What is raised where a ring fails."""

from __future__ import annotations

from typing import Any

from fiber._ring.model import Failure
from fiber.exceptions import FiberError

__all__ = ["RingError"]


class RingError(FiberError):
    """A ring failed; the text has the first failure's rank, host, reason and traceback.

    Where user code raised, that exception is its cause.
    """

    def __init__(self, message: str, *, failure: Failure) -> None:
        super().__init__(message)
        #: what failed first
        self.failure = failure

    def __str__(self) -> str:
        parts = [super().__str__()]
        if self.failure.log_tail:
            parts += [f"    {line}" for line in self.failure.log_tail]
        if self.failure.traceback:
            parts += ["", self.failure.traceback.rstrip()]
        return "\n".join(parts)

    def __reduce__(self) -> Any:
        return _rebuild, (super().__str__(), self.failure)


def _rebuild(message: str, failure: Failure) -> RingError:
    return RingError(message, failure=failure)
