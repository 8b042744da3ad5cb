"""Programs on a terminal of their own, as a person sees and types."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from waiting import PATIENCE

#: has the terminal control the program, so that Ctrl-C reaches it
_CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, sys.argv[1]])
"""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, program, environ):
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CONTROLLED, program],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=environ,
        )
        os.close(theirs)
        #: what was shown and not yet expected
        self.shown = ""

    def expect(self, pattern):
        """Read until a pattern is shown; returns the match."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.shown)):
            ready = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"{pattern!r} is not shown: {self.shown}"
            try:
                self.shown += os.read(self._ours, 4096).decode()
            except OSError:
                pytest.fail(f"the program has ended before {pattern!r}: {self.shown}")
        self.shown = self.shown[found.end() :]
        return found

    def type(self, line):
        os.write(self._ours, line.encode())

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def end(self):
        """Wait for the end of the program; returns its exit code and the rest that it showed."""
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 4096):
                self.shown += data.decode()
        return self.process.wait(PATIENCE), self.shown
