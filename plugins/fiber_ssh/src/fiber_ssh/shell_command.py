"""Command lines for a host's login shell, quoted so that any shell passes them on; pure."""

from __future__ import annotations

import base64
import shlex
import zlib
from collections.abc import Mapping, Sequence

__all__ = ["MARKER", "command_line", "python_command", "quote"]

#: line that a marked command writes to both streams before its program runs: output before it comes
#: from the start-up files of the user's shell
MARKER = b"fiber-ssh:\n"
# split by quotes: a shell that traces its commands (set -x) does not print the marker by that
_ECHO_MARKER = 'echo fiber-"ssh:"'

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-")


def quote(word: str) -> str:
    """A word quoted for a POSIX shell."""
    return shlex.quote(word)


def command_line(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    directory: str | None = None,
    path: str | None = None,
    marked: bool = False,
) -> str:
    """A command line that runs ``argv`` with its arguments unchanged.

    Args:
        argv: program and arguments.
        env: variables to set.
        directory: where to run it.
        path: a folder to put before the others in which programs are looked for.
        marked: True to have :data:`MARKER` written first, to stdout and to stderr.

    Raises:
        ValueError: a word with a null character, or a variable that no shell can set.
    """
    for word in (*argv, *(env or {}).values(), directory or ""):
        if "\0" in word:
            msg = f"{word!r} has a null character, which no argument can have"
            raise ValueError(msg)
    words = []
    for name, value in (env or {}).items():
        if not name.isidentifier() or not name.isascii():
            msg = f"{name!r} is no name of an environment variable that a shell can set"
            raise ValueError(msg)
        words.append(quote(f"{name}={value}"))
    run = " ".join(map(quote, argv))
    if words:
        run = f"env {' '.join(words)} {run}"
    if path is not None:
        run = f"PATH={quote(path)}:$PATH; export PATH; exec {run}"
    else:
        run = f"exec {run}"
    if directory is not None:
        run = f"cd -- {quote(directory)} && {{ {run}; }}"
    if marked:
        run = f"{_ECHO_MARKER}; {_ECHO_MARKER} >&2; {run}"
    # the login shell may be of any kind; sh is everywhere
    return f"exec sh -c {quote(run)}"


def python_command(python: str, source: str) -> str:
    """A command line that has a Python run a program.

    :data:`MARKER` is written to stderr first. On stdout the program itself has to mark where its
    output begins. The source is compressed and in base64, so that no shell interprets it.

    Args:
        python: the Python; ``~`` at its beginning is the user's home.
        source: the program's text.
    """
    packed = base64.b64encode(zlib.compress(source.encode(), 9)).decode()
    code = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    run = f'{_ECHO_MARKER} >&2; exec {_program(python)} -c "{code}"'
    return f"exec sh -c {quote(run)}"


def _program(python: str) -> str:
    head = "~/" if python.startswith("~/") else ""
    rest = python.removeprefix("~/")
    return head + (rest if rest and set(rest) <= _SAFE else quote(rest))
