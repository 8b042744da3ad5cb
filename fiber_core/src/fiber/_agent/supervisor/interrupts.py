"""SIGINT to the program's process group, reported to the supervisor by a process that stays in it.

A supervisor has a process group of its own, and so has each job: Ctrl-C, or a signal to the
program's process group, reaches neither. With ``multiprocessing`` the children are in that group, and Ctrl-C
interrupts them with the program, whatever handler the program has. So the supervisor leaves a
process in the group that does nothing but report SIGINT, which the supervisor passes on to the jobs
in the foreground.

Apart from ``server``: that process is forked before anything else is imported, and stays small.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from fiber._agent.supervisor import kernel
from fiber._wire.descriptors import fill_standard_descriptors

if TYPE_CHECKING:
    from fiber._base.threads import Loop, Timer
    from fiber._wire.descriptors import Descriptors

#: name of the process in the group, as the system shows it
_TITLE = "fiber-interrupt"
_INTERRUPT = b"i"
_QUESTION = b"?"
_ANSWER = b"."


def fork_reporter(channel: int) -> tuple[int, int, int]:
    """Fork a process that stays behind in the program's group to report SIGINT.

    To be called first of all, in a process that was started with the group's signals blocked. It is
    waited for by :func:`leave_group` only: two forks and an end, during which this process can import.

    Args:
        channel: a descriptor that the forked process must not keep open.

    Returns:
        for :func:`leave_group`: a descriptor to read, one to write, and the id of the process that
        forks the one that stays.
    """
    fill_standard_descriptors()
    answers, answering = os.pipe()
    questions, asking = os.pipe()
    # A grandchild: its parent must not be in the program's session and another group, as this process
    # will be. Where such a child of a group is its last and ends, or loses that parent, the kernel
    # counts the group as newly orphaned and hangs it up if one of its processes is stopped.
    between = os.fork()
    if between == 0:
        try:
            if reporter := os.fork():
                os.write(answering, b"%d" % reporter)
            else:
                for descriptor in (channel, answers, asking):
                    os.close(descriptor)
                _report_interrupts(questions, answering)
        finally:
            os._exit(0)
    os.close(questions)
    os.close(answering)
    return answers, asking, between


def leave_group(forked: tuple[int, int, int]) -> tuple[int, int, int]:
    """Leave the program's group and terminal; what signals came since this process was started is dropped.

    Args:
        forked: from :func:`fork_reporter`.

    Returns:
        for :class:`Interrupts`: a descriptor to read, one to write, and the id of the process that
        stays in the group, which ends once the latter is closed.
    """
    answers, asking, between = forked
    # until it has ended, this process is in the group too; where SIGCHLD is ignored it has no status
    with contextlib.suppress(ChildProcessError):
        os.waitpid(between, 0)
    # what it reported meanwhile interrupts nothing
    words = os.read(answers, 4096).strip(_INTERRUPT)
    if not words:
        msg = "the system has no room for the process that reports interrupts"
        raise OSError(msg)
    kernel.leave_group()
    for signum in kernel.GROUP_SIGNALS:
        handler = signal.signal(signum, signal.SIG_IGN)
        signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, kernel.GROUP_SIGNALS)
    return answers, asking, int(words)


def _report_interrupts(questions: int, answering: int) -> None:
    # by what needs no import: others wait for the processor
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as name:
        name.write(_TITLE)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {signal.SIGINT})
    poll = select.poll()
    for descriptor in (reader, questions):
        poll.register(descriptor, select.POLLIN)
    with contextlib.suppress(OSError):
        while True:
            # questions first: an interrupt that was sent before one is in the pipe by then
            asked = b""
            if questions in dict(poll.poll()):
                asked = os.read(questions, 4096)
                if not asked:
                    return
            with contextlib.suppress(BlockingIOError):
                os.write(answering, _INTERRUPT * len(os.read(reader, 4096)))
            os.write(answering, _ANSWER * len(asked))


class Interrupts:
    """Reports of the process in the program's group.

    Args:
        reporter: from :func:`leave_group`.
        loop: event loop that reads them.
        descriptors: owner of its descriptors.
        on_interrupt: called for each SIGINT to the program's group.
        answer_timeout: seconds for an answer; a process that was stopped gives none.
    """

    def __init__(
        self,
        reporter: tuple[int, int, int],
        *,
        loop: Loop,
        descriptors: Descriptors,
        on_interrupt: Callable[[], None],
        answer_timeout: float,
    ) -> None:
        self._answer_timeout = answer_timeout
        self._reader, self._writer, self._pid = reporter
        for descriptor in (self._reader, self._writer):
            os.set_blocking(descriptors.own(descriptor), False)
        self._descriptors = descriptors
        self._loop = loop
        self._on_interrupt = on_interrupt
        #: one for each answer that is to come, with the timer that does not wait for it
        self._waiting: deque[tuple[Timer, Callable[[], None]]] = deque()
        self._has_ended = False
        loop.on_readable(self._reader, self._read)

    def settle(self, action: Callable[[], None]) -> None:
        """Run ``action`` once every SIGINT that was sent before this call has been reported."""
        if not self._has_ended:
            try:
                os.write(self._writer, _QUESTION)
            except OSError:
                # the process was killed and reports nothing any more
                self._end()
            else:
                timer = self._loop.call_later(self._answer_timeout, action)
                self._waiting.append((timer, action))
                return
        action()

    def close(self) -> None:
        """End the process in the group; nothing more is reported. Idempotent."""
        if self._writer >= 0:
            poll = select.poll()
            poll.register(self._reader, 0)
            if not poll.poll(0):
                # it lives: nobody else has the pipe; one that was stopped would not see this end
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
            self._end()
            self._descriptors.close(self._writer)
            self._writer = -1

    def _read(self) -> None:
        try:
            reports = os.read(self._reader, 4096)
        except BlockingIOError:
            return
        if not reports:
            self._end()
        for number in range(len(reports)):
            if reports[number : number + 1] == _INTERRUPT:
                self._on_interrupt()
            elif self._waiting:
                self._act(*self._waiting.popleft())

    def _act(self, timer: Timer, action: Callable[[], None]) -> None:
        if timer.callback is not None:
            timer.cancel()
            action()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._loop.forget(self._reader)
        while self._waiting:
            self._act(*self._waiting.popleft())
