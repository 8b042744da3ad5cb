"""``fiber rsh``: runs a shell command line beside a job, like a remote shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fiber._ring.mpi.agent import SOCKET, call, parse
from fiber.cli.errors import after_signal
from fiber.exceptions import CapabilityError, FiberError

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["command"]


@click.command(
    "rsh",
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
        "ignore_unknown_options": True,
    },
    short_help="Run words in a shell where a job runs.",
)
@click.argument("words", metavar="HOST WORDS...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Run WORDS, joined by blanks, in a shell where HOST runs, and end with their exit code.

    Within 'fiber mpirun' HOST is a member; programs that start theirs by a remote shell can be told
    to use 'fiber rsh' in its place. Elsewhere it is a job: an id, the beginning of one, or a name.
    A remote shell's options before HOST are tolerated and mean nothing. Standard input is passed on.
    """
    try:
        host, line = parse(words)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    path = os.environ.get(SOCKET)
    ctx.exit(call(path, host, line) if path else _exec_beside(host, ["/bin/sh", "-c", line]))


def _exec_beside(word: str, argv: Sequence[str]) -> int:
    from fiber.cli.session import Session
    from fiber.cli.show import find_job

    session = Session.load()
    try:
        session.require("exec", "fiber rsh")
    except CapabilityError as error:
        advice = "its jobs run on this machine, so run the words here; "
        local = advice if session.info.capabilities.same_host else ""
        msg = (
            f"{error}: {local}within 'fiber mpirun' HOST is a member, and that works on any "
            "backend; FIBER_BACKEND names one whose jobs can be entered"
        )
        raise FiberError(msg) from error
    stdin: BinaryIO | None = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer
    with session.open_backend() as loaded:
        code = loaded.exec(find_job(loaded.list(), word), argv, stdin=stdin)
    return after_signal(-code) if code < 0 else code
