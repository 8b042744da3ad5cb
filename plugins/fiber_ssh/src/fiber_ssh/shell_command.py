"""What is said to a host's shell; pure, and the same for every shell that people have."""

from __future__ import annotations

import base64
import shlex
import zlib
from collections.abc import Mapping, Sequence

__all__ = ["MARK", "command_line", "python_line", "quote"]

#: what a marked command writes to both streams before its program runs: what comes before it is of
#: the start-up files of the user's shell
MARK = b"fiber-ssh:\n"
# a shell that writes down what it is told (set -x) does not write the mark by it
_SAY = 'echo fiber-"ssh:"'

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-")


def quote(word: str) -> str:
    """A word for a POSIX shell."""
    return shlex.quote(word)


def command_line(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    directory: str | None = None,
    path: str | None = None,
    marked: bool = False,
) -> str:
    """A command that runs ``argv``, its arguments as they are.

    Args:
        argv: program and arguments.
        env: variables to set.
        directory: where to run it.
        path: a folder to put before the others in which programs are looked for.
        marked: True to have :data:`MARK` written first, to stdout and to stderr.

    Raises:
        ValueError: a word that no shell can be told, or a variable that none can set.
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
        run = f"{_SAY}; {_SAY} >&2; {run}"
    # the login shell may be any; sh is everywhere
    return f"exec sh -c {quote(run)}"


def python_line(python: str, source: str) -> str:
    """A command that has a Python run a program, which no shell takes to be anything else.

    :data:`MARK` is written to stderr first; what the program answers has to be told from what came
    before by the program itself.

    Args:
        python: the Python; ``~`` at its beginning is the user's home.
        source: the program.
    """
    packed = base64.b64encode(zlib.compress(source.encode(), 9)).decode()
    code = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    run = f'{_SAY} >&2; exec {_program(python)} -c "{code}"'
    return f"exec sh -c {quote(run)}"


def _program(python: str) -> str:
    head = "~/" if python.startswith("~/") else ""
    rest = python.removeprefix("~/")
    return head + (rest if rest and set(rest) <= _SAFE else quote(rest))
