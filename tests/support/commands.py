"""Commands of tests that run to their end."""

import subprocess
from collections.abc import Iterable
from typing import Any


def ran(words: Iterable[object], **more: Any) -> subprocess.CompletedProcess[str]:
    """A command that has ended, with its output as text; the test's own timeout ends it, too.

    Args:
        words: the command and its arguments.
        more: of :func:`subprocess.run`.
    """
    argv = list(map(str, words))
    return subprocess.run(argv, capture_output=True, text=True, check=False, **more)
