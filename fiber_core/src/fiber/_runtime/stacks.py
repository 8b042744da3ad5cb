"""Stacks of a process, written into a file of the run's folder when a signal asks for them.

The handler is :mod:`faulthandler`'s: it needs neither the interpreter's lock nor its memory, so that a
process which hangs in C code shows where, too. The signal is one that programs do not use, and it is sent
to a process alone that has a file open here (see :mod:`fiber.cli.stacks`). A program that handles it
already is left alone.

Apart from ``runtime``, since commands need the names.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

from fiber._agent.rundir import STACKS
from fiber._base.log import lazy_logger

log = lazy_logger()

#: a real-time signal; where there is none (macOS), the one that is ignored by default
SIGNAL: int = (
    int(signal.SIGRTMAX) - 5 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGINFO", 0)
)


class StackFile:
    """The file of this process, and the handler that writes into it. Its first line is the process id.

    Args:
        folder: of the run.
        ident: of the process within the run.
    """

    def __init__(self, folder: Path, ident: str) -> None:
        self._path = folder / f"{ident}{STACKS}"
        self._descriptor: int | None = None
        try:
            if not SIGNAL or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
            os.write(self._descriptor, b"%d\n" % os.getpid())
            faulthandler.register(SIGNAL, self._descriptor, all_threads=True)
        except (OSError, RuntimeError, ValueError) as error:
            # nobody can ask, and all else works
            log.debug("fiber: the stacks of this process cannot be shown: %s", error)
            self.close()

    def close(self) -> None:
        """Take the handler away and remove the file; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        faulthandler.unregister(SIGNAL)
        with contextlib.suppress(OSError):
            # a task may have closed it, and the number may be another file's by now
            if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                os.close(descriptor)
        self._path.unlink(missing_ok=True)
