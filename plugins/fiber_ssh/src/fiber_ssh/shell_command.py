"""Command lines for a host's login shell, quoted so that any shell passes them on; pure."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from shlex import quote

#: line that a marked command writes to both streams before its program runs: output before it comes
#: from the start-up files of the user's shell
MARKER = b"fiber-ssh:\n"
# split by quotes: a shell that traces its commands (set -x) does not print the marker by that
_ECHO_MARKER = 'echo fiber-"ssh:"'

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_+=:,./-")


def command_line(
    argv: Sequence[str],
    *,
    env: str | None = None,
    directory: str | None = None,
    path: str | None = None,
    marked: bool = False,
) -> str:
    """A command line that runs ``argv`` with its arguments unchanged.

    Args:
        argv: program and arguments.
        env: path of an :func:`environment_file` on the host, which sets variables and is removed.
        directory: where to run it.
        path: a folder to put before the others in which programs are looked for.
        marked: True to have :data:`MARKER` written first, to stdout and to stderr.

    Raises:
        ValueError: a word with a null character.
    """
    for word in (*argv, directory or ""):
        if "\0" in word:
            msg = f"{word!r} has a null character, which no argument can have"
            raise ValueError(msg)
    run = f"exec {' '.join(map(quote, argv))}"
    if env is not None:
        run = f". {quote(env)} && {run}"
    if path is not None:
        run = f"PATH={quote(path)}:$PATH; export PATH; {run}"
    if directory is not None:
        run = f"cd -- {quote(directory)} && {{ {run}; }}"
    if marked:
        run = f"{_ECHO_MARKER}; {_ECHO_MARKER} >&2; {run}"
    # the login shell may be of any kind; sh is everywhere
    return f"exec sh -c {quote(run)}"


def environment_file(path: str, env: Mapping[str, str]) -> str:
    """Shell commands that set variables, for a file that removes itself when it is read.

    In a command line all users of the host would see the values, by ``ps``.

    Args:
        path: of the file.
        env: the variables.

    Raises:
        ValueError: a null character, or a variable that no shell can set.
    """
    lines = [f"rm -f -- {quote(path)}"]
    for name, value in env.items():
        if not name.isidentifier() or not name.isascii():
            msg = f"{name!r} is no name of an environment variable that a shell can set"
            raise ValueError(msg)
        if "\0" in value:
            msg = f"the value of {name} has a null character, which no variable can have"
            raise ValueError(msg)
        lines.append(f"export {name}={quote(value)}")
    return "".join(f"{line}\n" for line in lines)


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
