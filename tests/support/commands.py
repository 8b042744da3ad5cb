"""Commands of tests that run to their end."""

import subprocess
from collections.abc import Iterable
from typing import Any


def ran(
    words: Iterable[object], *, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with its output as text; the test's own timeout ends it, too.

    Args:
        words: the command and its arguments.
        check: whether a failure is an exception.
        more: of :func:`subprocess.run`.
    """
    argv = list(map(str, words))
    return subprocess.run(argv, capture_output=True, text=True, check=check, **more)
