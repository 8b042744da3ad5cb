"""A ring of a command that goes on when the command that began it has ended: its owner is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from fiber._ring.command_rings.records import Record
from fiber.exceptions import FiberError

__all__ = ["left"]

_BEGUN = b"+"


def left(record: Record) -> Callable[[], None] | None:
    """Split this process: one half returns to who called it, the other one owns the ring.

    It must be called before anything was opened or started.

    Args:
        record: of the ring; what its owner writes is found there.

    Returns:
        in the owner, what it must call once the ring has been started; in the half that was called
        None, once that has happened.

    Raises:
        FiberError: the ring was not started, with what its owner wrote.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        with open(told, "rb") as answer:
            has_begun = answer.read(1) == _BEGUN
        if not has_begun:
            _, status = os.waitpid(pid, 0)
            text = record.errors.read_text(errors="replace").strip() or f"it ended with {status}"
            record.remove()
            msg = f"{record.name} was not started: {text.removeprefix('fiber: ')}"
            raise FiberError(msg)
        return None
    os.close(told)
    # signals of the terminal are for others now
    os.setsid()
    _redirect(record)
    record.owned()

    def begun() -> None:
        os.write(tell, _BEGUN)
        os.close(tell)

    return begun


def _redirect(record: Record) -> None:
    """Standard input and output lead nowhere, errors to the record."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    errors = os.open(record.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((nowhere, 0), (nowhere, 1), (errors, 2)):
        os.dup2(number, target)
    os.close(nowhere)
    os.close(errors)
