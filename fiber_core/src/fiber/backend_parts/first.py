"""First process of a container whose program is not Fiber's: runs it, and reports how it ended.

A program that is process 1 itself has no default actions for signals, reaps no orphans, and ends with
a code that an engine cannot tell from a signal's number. The text of this file, :func:`text`, is an
argument of a Python in the container, or comes by its standard input; that Python need not have
Fiber, so it imports the standard library alone. Its arguments are:

1. a file, to which it appends a line with how the program ended, see :func:`last_word`;
2. its standard input: ``program``, which belongs to the program; ``source``, where this text came
   from, open as the global ``stream``, and the program gets none; ``bond:SECONDS``, the same, and
   when the input ends the program gets SIGTERM and, so many seconds later, SIGKILL;
3. the number of private bytes that follow this text there, or -1 for none: the program reads them
   from the descriptor that its variable ``FIBER_BOOTSTRAP`` names;
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
    # for type checkers alone: this program must start fast
    from collections.abc import Callable, Iterable, Sequence
    from typing import BinaryIO

_PREFIX = "fiber: "
#: exit codes of shells for a program that is there and cannot be run, and for one that is not
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_NEVER_FORWARDED = {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}


@functools.cache
def text() -> str:
    """Text of this file."""
    with open(__file__, encoding="utf-8") as file:
        return file.read()


def last_word(written: str) -> tuple[str, str]:
    """End of a program, and the rest of the file's text.

    Args:
        written: content of the file that the first argument names.

    Returns:
        ``exit CODE``, ``signal NUMBER`` or ``start WORDS``, where it could not be started; empty
        where the first process was killed.
    """
    *lines, last = written.strip("\n").split("\n")
    if last.startswith(_PREFIX):
        return last[len(_PREFIX) :], "\n".join(lines).strip()
    return "", written.strip()


def main(
    words: Sequence[str],
    stream: BinaryIO | None,
    on_start: Callable[[int], object] = lambda _: None,
) -> int:
    """Run a program as its parent; returns the exit code.

    Args:
        words: the arguments, see above.
        stream: source of the private bytes.
        on_start: called with its process id once it runs.
    """
    end, given, length, argv = words[0], words[1], int(words[2]), words[3:]
    if stream is not None and length >= 0:
        os.environ["FIBER_BOOTSTRAP"] = f"fd:{private(stream, length)}"
    held = 0
    if given != "program":
        held = os.dup(0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
    # before there is a child: signals that come from now on are passed on to it
    forwarded = signal.valid_signals() - _NEVER_FORWARDED
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    child, failure, code = spawn(argv, before)
    if failure:
        words = f"cannot run {argv[0]!r}: {failure}"
        report(end, f"start {words}")
        sys.stderr.write(f"{_PREFIX}{words}\n")
        sys.stderr.flush()
        return code
    for number in forwarded:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda number, _: forward_signal(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    on_start(child)
    if given.startswith("bond:"):
        grace = float(given[len("bond:") :])
        threading.Thread(target=end_with, args=(held, child, grace), daemon=True).start()
    return reap(child, end)


def private(stream: BinaryIO, length: int) -> int:
    """Descriptor from which the program reads its private bytes; it has no path."""
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


def spawn(argv: Sequence[str], mask: Iterable[int]) -> tuple[int, str, int]:
    """Start the program in a session of its own.

    Returns:
        its process id, the error and the exit code for that; "" and 0 where it runs.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = _NOT_EXECUTABLE
        try:
            os.setsid()
            # a Python ignores these two, and its children would
            for number in signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvp(argv[0], list(argv))  # noqa: S606 - the program that was asked for
        except BaseException as error:
            if isinstance(error, FileNotFoundError):
                code = _NOT_FOUND
            os.write(writer, str(error).encode("utf-8", "backslashreplace"))
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as stream:
        # it ends when the program runs, which closes the other end
        failure = stream.read().decode("utf-8", "replace")
    if not failure:
        return child, "", 0
    return child, failure, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def end_with(held: int, child: int, grace: float) -> None:
    """End the program when the standard input ends, which its starter held open."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while os.read(held, 4096):
        pass
    sys.stderr.write(f"{_PREFIX}the process that started this program is gone, so it is ended\n")
    sys.stderr.flush()
    forward_signal(child, signal.SIGTERM)
    time.sleep(grace)
    # its session; what left that ends with the container, when its first process does
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def forward_signal(child: int, number: int) -> None:
    """Pass a signal on to the program."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def reap(child: int, end: str) -> int:
    """Reap children until the program has ended; returns the exit code."""
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
    """Append a last line to the file, after anything that the program has written there."""
    # a file system that takes none costs the distinction between codes and signals, no more
    with contextlib.suppress(OSError), open(end, "a") as file:
        file.write(f"\n{_PREFIX}{word}\n")


if __name__ == "__main__":
    os._exit(main(sys.argv[1:], globals().get("stream")))
