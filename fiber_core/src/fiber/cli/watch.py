"""Events of jobs, signals to this process and answers on the terminal, in one queue.

:class:`Watcher` is the queue; :class:`Question` asks on the terminal without blocking it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from fiber._base.threads import ending_signals, next_item
from fiber.cli.output import Interrupted
from fiber.exceptions import BackendUnavailableError

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.model import Job, JobStatus


class Watcher:
    """Queue of the events of runs; its threads, one per run, end when the backend is closed."""

    def __init__(self, backend: Backend, *run_ids: str) -> None:
        self._backend = backend
        self._queues_signals = False
        self._grace = 0.0
        #: True once there was a Ctrl-C that waits for queue_signals()
        self._is_interrupted = False
        # put() may be called by a signal handler, in the middle of get()
        self._queue: queue.SimpleQueue[tuple[Job, JobStatus] | Exception | int | str] = (
            queue.SimpleQueue()
        )
        for run_id in run_ids:
            name = f"fiber-watch-{run_id}"
            threading.Thread(target=self._read, args=(run_id,), name=name, daemon=True).start()

    def get(self, *, until: float | None = None) -> tuple[Job, JobStatus] | int | str | None:
        """Wait for the next event: a job with its status, the number of a signal, or an answer.

        None after ``until`` on the monotonic clock.

        Raises:
            Exception: raised by the backend's event stream.
        """
        item = next_item(self._queue, until)
        if isinstance(item, Exception):
            raise item
        return item

    def answer(self, text: str) -> None:
        """Queue the answer to a question; may be called on any thread."""
        self._queue.put(text)

    @contextlib.contextmanager
    def signals(self, grace: float = 0.0) -> Iterator[None]:
        """Handle signals that end this process in the ``with`` block: they raise Interrupted.

        After :meth:`queue_signals` they are events instead.

        Args:
            grace: seconds for which the first Ctrl-C waits for :meth:`queue_signals`: a job may
                run, and have written to the terminal, before its submission has returned.
        """
        self._grace = grace
        before = signal.signal(signal.SIGALRM, self._on_alarm)
        try:
            with ending_signals(self._on_signal):
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def queue_signals(self) -> None:
        """Make signals events from now on, since there is a job to end first."""
        self._queues_signals = True
        if self._is_interrupted:
            self._queue.put(signal.SIGINT)

    def _on_signal(self, number: int) -> None:
        if self._queues_signals:
            self._queue.put(number)
        elif number == signal.SIGINT and self._grace and not self._is_interrupted:
            self._is_interrupted = True
            signal.setitimer(signal.ITIMER_REAL, self._grace)
        else:
            raise Interrupted(number)

    def _on_alarm(self, *_: object) -> None:
        if not self._queues_signals:
            raise Interrupted(signal.SIGINT)

    def _read(self, run_id: str) -> None:
        try:
            for event in self._backend.events(run_id):
                self._queue.put(event)
        except Exception as error:
            self._queue.put(error)
        else:
            # not read where the backend was closed on purpose
            self._queue.put(BackendUnavailableError(f"the events of run {run_id} have ended"))


_MAX_ANSWER = 1024


def can_ask() -> bool:
    """Return True where the command runs on a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Question:
    """Question on the terminal, answered on a thread; a context manager that stops reading.

    Args:
        on_answer: called with the answer on a thread of its own: the line typed, stripped and in
            lower case; "" at the end of the input.
    """

    def __init__(self, on_answer: Callable[[str], None]) -> None:
        self._on_answer = on_answer
        self._wake_read, self._wake_write = os.pipe()
        self._thread: threading.Thread | None = None
        #: True while waiting for an answer
        self.is_open = False

    def ask(self, text: str) -> None:
        """Print a question and return at once; an open question is printed again."""
        click.echo(text, nl=False, err=True)
        if not self.is_open:
            self.is_open = True
            self._thread = threading.Thread(
                target=self._read_answer,
                args=(sys.stdin.fileno(),),
                name="fiber-question",
                daemon=True,
            )
            self._thread.start()

    def __enter__(self) -> Question:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_open:
            # end the line of the question
            click.echo(err=True)
        os.close(self._wake_write)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake_read)

    def _read_answer(self, terminal: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            selector.register(terminal, selectors.EVENT_READ)
            if any(key.fd == self._wake_read for key, _ in selector.select()):
                return
        answer = os.read(terminal, _MAX_ANSWER).decode("utf-8", "replace").strip().lower()
        # before anybody hears of it: Ctrl-C after an answer is another question, and no "yes"
        self.is_open = False
        self._on_answer(answer)
