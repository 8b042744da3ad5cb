"""A process of a remote job: waits until its supervisor has reached the parent, then begins."""

from __future__ import annotations

import contextlib
import os
import signal

from fiber._runtime import bootstrap

__all__ = ["ENTRY", "PASSED_ON", "Gate", "main"]

#: how the supervisor names :func:`main`
ENTRY = "fiber._agent.job.start_barrier:main"
#: signals that a supervisor passes on to its processes, besides SIGTERM and SIGINT
PASSED_ON = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Gate:
    """Where processes wait until the parent has accepted their job."""

    #: of this process's job; set before the fork
    current: Gate | None = None

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def open(self) -> None:
        """Let everybody go on."""
        os.close(self.reader)
        # all who waited may have been killed meanwhile
        with contextlib.suppress(BrokenPipeError):
            os.write(self.writer, b"\0" * 4096)
        os.close(self.writer)

    def wait(self) -> bool:
        """Wait; False where it is never opened."""
        os.close(self.writer)
        try:
            return bool(os.read(self.reader, 1))
        finally:
            os.close(self.reader)


def main(private: bytes, index: int) -> int:
    """Be process ``index`` of the job; return its exit code."""
    gate, Gate.current = Gate.current, None
    if gate is not None and not gate.wait():
        return 126
    return bootstrap.main(private, index)
