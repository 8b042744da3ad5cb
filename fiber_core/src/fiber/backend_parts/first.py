"""First process of a container whose program is not Fiber's: runs it, and tells how it ended.

A program that is process 1 itself has no default actions for signals, reaps nobody, and ends with
a code that an engine cannot tell from a signal's number. The text of this file, :func:`text`, is an
argument of a Python in the container, or comes by its standard input; that Python need not have
Fiber, so it imports the standard library alone. Its arguments are:

1. a file, to which it adds a line with how the program ended, see :func:`last_word`;
2. what its standard input is: ``program``, the program's; ``source``, where this text came from,
   open as the global ``stream``, and the program gets none; ``bond``, the same, and the program
   shall end with whoever holds it open;
3. how many private bytes follow this text there, or -1 for none: the program reads them from the
   descriptor that its variable ``FIBER_BOOTSTRAP`` names;
4. the program and its arguments.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import tempfile
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    # imported by those who check types alone: it must start fast
    from collections.abc import Iterable, Sequence
    from typing import BinaryIO

_MARK = "fiber: "
_STARTED_NOT = 127
#: seconds that a program has to end when its starter was killed
_GRACE = 5.0
_NEVER_PASSED_ON = {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}


@functools.cache
def text() -> str:
    """This file."""
    with open(__file__, encoding="utf-8") as file:
        return file.read()


def last_word(written: str) -> tuple[str, str]:
    """How a program ended, and what was in the file besides.

    Args:
        written: what is in the file that the first argument names.

    Returns:
        ``exit CODE``, ``signal NUMBER`` or ``start WORDS``, where it could not be started; empty
        where the first process was killed.
    """
    *lines, last = written.strip("\n").split("\n")
    if last.startswith(_MARK):
        return last[len(_MARK) :], "\n".join(lines).strip()
    return "", written.strip()


def main(words: Sequence[str], stream: BinaryIO | None) -> int:
    """Run a program and be its parent; returns what to exit with.

    Args:
        words: the arguments, see above.
        stream: where the private bytes come from.
    """
    end, given, length, argv = words[0], words[1], int(words[2]), words[3:]
    if stream is not None and length >= 0:
        os.environ["FIBER_BOOTSTRAP"] = f"fd:{private(stream, length)}"
    held = 0
    if given != "program":
        held = os.dup(0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
    # before there is a child: whatever comes from now on is passed on to it
    wanted = signal.valid_signals() - _NEVER_PASSED_ON
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    child, failure = spawn(argv, before)
    if failure:
        told = f"cannot run {argv[0]!r}: {failure}"
        report(end, f"start {told}")
        sys.stderr.write(f"{_MARK}{told}\n")
        sys.stderr.flush()
        return _STARTED_NOT
    for number in wanted:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda number, _: pass_on(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if given == "bond":
        threading.Thread(target=end_with, args=(held, child), daemon=True).start()
    return attend(child, end)


def private(stream: BinaryIO, length: int) -> int:
    """A descriptor from which the program reads its private bytes; no path leads to them."""
    data = stream.read(length)
    if hasattr(os, "memfd_create"):
        descriptor: int = os.memfd_create("fiber")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def spawn(argv: Sequence[str], mask: Iterable[int]) -> tuple[int, str]:
    """Start the program in a session of its own; its process id, and why it could not be."""
    ear, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            # a Python ignores these two, and its children would
            for number in signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvp(argv[0], list(argv))  # noqa: S606 - the program that was asked for
        except BaseException as error:
            os.write(mouth, str(error).encode("utf-8", "backslashreplace"))
        finally:
            os._exit(_STARTED_NOT)
    os.close(mouth)
    with open(ear, "rb") as stream:
        # it ends when the program runs, which closes the other end
        failure = stream.read().decode("utf-8", "replace")
    if failure:
        os.waitpid(child, 0)
    return child, failure


def end_with(held: int, child: int) -> None:
    """End everything once our input ends: whoever held it open was killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while os.read(held, 4096):
        pass
    sys.stderr.write(f"{_MARK}whoever started this program is gone, so it is ended\n")
    sys.stderr.flush()
    pass_on(child, signal.SIGTERM)
    time.sleep(_GRACE)
    # its session; what left that ends with the container, when its first process does
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def pass_on(child: int, number: int) -> None:
    """Send the program a signal that came to us."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def attend(child: int, end: str) -> int:
    """Reap whatever ends, until the program has; returns what to exit with."""
    while True:
        pid, status = os.wait()
        if pid != child:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            report(end, f"signal {-code}")
            return 128 - code
        report(end, f"exit {code}")
        return code


def report(end: str, word: str) -> None:
    """Leave a last line for whoever asks, behind what the program may have left there."""
    # a file system that takes none costs the distinction between codes and signals, no more
    with contextlib.suppress(OSError), open(end, "a") as file:
        file.write(f"\n{_MARK}{word}\n")


if __name__ == "__main__":
    os._exit(main(sys.argv[1:], globals().get("stream")))
