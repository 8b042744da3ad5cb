"""First process of a container whose program is not Fiber's: runs it, and tells how it ended.

A program that is process 1 itself has no default actions for signals, reaps nobody, and ends with
a code that the cluster cannot tell from a signal's number. This source is an argument of a Python
that need not have Fiber, so it imports the standard library alone. What it leaves in the file for
termination messages comes with the container's state.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # imported by those who check types alone: it must start fast
    from collections.abc import Iterable, Sequence

#: what the cluster takes a container's last words from
END = "/dev/termination-log"
_STARTED_NOT = 127
_NEVER_PASSED_ON = {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}


def main(argv: Sequence[str]) -> int:
    """Run a program and be its parent; returns what to exit with."""
    # before there is a child: whatever comes from now on is passed on to it
    wanted = signal.valid_signals() - _NEVER_PASSED_ON
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    child, failure = spawn(argv, before)
    if failure:
        words = f"cannot run {argv[0]!r}: {failure}"
        report(f"start {words}")
        sys.stderr.write(f"fiber: {words}\n")
        sys.stderr.flush()
        return _STARTED_NOT
    for number in wanted:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda number, _: pass_on(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return attend(child)


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


def pass_on(child: int, number: int) -> None:
    """Send the program a signal that came to us."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def attend(child: int) -> int:
    """Reap whatever ends, until the program has; returns what to exit with."""
    while True:
        pid, status = os.wait()
        if pid != child:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            report(f"signal {-code}")
            return 128 - code
        report(f"exit {code}")
        return code


def report(text: str) -> None:
    """Leave a last line for whoever asks the cluster, behind what the program left there."""
    # a file system that takes none costs the distinction between codes and signals, no more
    with contextlib.suppress(OSError), open(END, "a") as file:
        file.write(f"\nfiber: {text}\n")


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
