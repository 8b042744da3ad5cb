"""Waits for the ends of jobs, and for signals at the same time.

A question on the terminal whose answer comes as an event, while everything else goes on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import click

from fiber.cli.errors import Interrupted
from fiber.exceptions import BackendUnavailableError

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.model import Job, JobStatus

__all__ = ["Question", "Watcher", "can_ask"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watcher:
    """The events of runs in one queue; its threads end when the backend is closed."""

    def __init__(self, backend: Backend, *run_ids: str) -> None:
        self._backend = backend
        self._queues_signals = False
        # put() may be called by a signal handler, in the middle of get()
        self._queue: queue.SimpleQueue[tuple[Job, JobStatus] | Exception | int | str] = (
            queue.SimpleQueue()
        )
        for run_id in run_ids:
            name = f"fiber-watch-{run_id}"
            threading.Thread(target=self._read, args=(run_id,), name=name, daemon=True).start()

    def get(self, *, until: float | None = None) -> tuple[Job, JobStatus] | int | str | None:
        """The next event, the number of a signal, or what a person answered.

        None after ``until`` on the monotonic clock.

        Raises:
            Exception: what the backend's stream of events raised.
        """
        try:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            item = self._queue.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(item, Exception):
            raise item
        return item

    def answer(self, text: str) -> None:
        """Queue what a person answered; may be called on any thread."""
        self._queue.put(text)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """In this block, signals that ask this process to end raise Interrupted.

        After :meth:`queue_signals` they are events.
        """
        # one that is ignored stays so: that is what nohup asks for
        heard = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._heard) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def queue_signals(self) -> None:
        """From now on signals are events: there is a job that has to end first."""
        self._queues_signals = True

    def _heard(self, number: int, _: object) -> None:
        if not self._queues_signals:
            raise Interrupted(number)
        self._queue.put(number)

    def _read(self, run_id: str) -> None:
        try:
            for event in self._backend.events(run_id):
                self._queue.put(event)
        except Exception as error:
            self._queue.put(error)
        else:
            # nobody reads this once the backend was closed on purpose
            self._queue.put(BackendUnavailableError(f"the events of run {run_id} have ended"))


_LINE = 1024


def can_ask() -> bool:
    """True where a person sits in front of this command."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Question:
    """Asks one thing at a time; used as a context, after which nobody reads the terminal.

    Args:
        told: called with an answer, on a thread of its own: what was typed, in small letters
            without the spaces around it; "" at the end of the input.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._ear, self._mouth = os.pipe()
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """True while an answer is awaited."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, text: str) -> None:
        """Ask, and return at once; a question that is open is asked again."""
        click.echo(text, nl=False, err=True)
        if not self.is_open:
            self._thread = threading.Thread(
                target=self._listen, args=(sys.stdin.fileno(),), name="fiber-question", daemon=True
            )
            self._thread.start()

    def __enter__(self) -> Question:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_open:
            # what comes next does not belong behind the question
            click.echo(err=True)
        os.close(self._mouth)
        if self._thread is not None:
            self._thread.join()
        os.close(self._ear)

    def _listen(self, terminal: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            selector.register(terminal, selectors.EVENT_READ)
            if any(key.fd == self._ear for key, _ in selector.select()):
                return
        self._told(os.read(terminal, _LINE).decode("utf-8", "replace").strip().lower())
