"""What is told of the work that killed its workers."""

from __future__ import annotations

from fiber._base import values
from fiber.model.job import Reason


@values.frozen(kw_only=True)
class Attempt:
    """One death of a worker while a task was alone on it."""

    #: name of the worker
    worker: str
    #: host it ran on
    host: str
    #: process id there, where known
    pid: int | None
    #: why it died
    reason: Reason
    #: one sentence for people
    message: str = ""
    #: the last lines it wrote
    log_tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.worker} (pid {self.pid} on {self.host})"
        text = f"{where}: {self.message or self.reason}"
        if self.log_tail:
            text += "".join(f"\n      {line}" for line in self.log_tail)
        return text
