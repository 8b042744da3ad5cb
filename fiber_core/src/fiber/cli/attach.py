"""Follows one job to its end: its output, its exit code, and signals that end it."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import click

from fiber.cli.errors import INTERRUPTED, after_signal
from fiber.cli.question import Question, can_ask
from fiber.cli.watch import Watcher
from fiber.exceptions import FiberError
from fiber.model import JobState, ReasonKind

if TYPE_CHECKING:
    from fiber.abc import Backend
    from fiber.cli.session import Session
    from fiber.model import Job, JobSpec, JobStatus

__all__ = ["attend", "exit_code"]

#: seconds that a job has to end after Ctrl-C
_GRACE = 5.0
_NOT_STARTED = 127
#: reasons of the platform's, for which no program is to blame
_NEVER_RAN = frozenset({ReasonKind.IMAGE, ReasonKind.UNSCHEDULABLE})
#: what a job is called where no tool but ours knows it
_PLAIN = "job"


def attend(session: Session, backend: Backend, run_id: str, spec: JobSpec) -> tuple[int, bool]:
    """Start a job and follow it.

    Args:
        session: of the command.
        backend: where it runs.
        run_id: the run.
        spec: the job; one that is detached can be left.

    Returns:
        what the command ends with, and whether the job was left running.
    """
    noun = session.info.noun
    watcher = Watcher(backend, run_id)
    with watcher.signals():
        job = session.submit(backend, spec)
        watcher.queue_signals()
        if noun != _PLAIN:
            # where it is looked for with other tools, too
            click.echo(f"Created {noun}: {job.id}", err=True)
        copy = None if session.info.capabilities.output else _copied(backend, job)
        with Question(watcher.answer) as question:
            ending = _Ending(backend, job, noun, question, can_leave=spec.detached)
            status = _to_the_end(session, job, watcher, ending)
        if status is not None and copy is not None:
            copy.join()
    if status is None:
        click.echo(f"fiber: {noun} {job.id} goes on: fiber logs -f {job.id}", err=True)
        return INTERRUPTED, True
    if ending.signum is not None:
        return after_signal(ending.signum), False
    if status.reason is not None and status.reason.kind is not ReasonKind.EXIT:
        click.echo(f"fiber: {noun} {job.id}: {status.message or status.reason}", err=True)
    return exit_code(status), False


def exit_code(status: JobStatus) -> int:
    """The exit code of an ended job as shells give it: 128 and the signal for one that was killed."""
    code = status.exit_code
    if status.reason is not None and status.reason.kind in _NEVER_RAN:
        return 1
    if code is not None and not (code == 0 and status.state is JobState.FAILED):
        return after_signal(-code) if code < 0 else code
    if status.reason is not None and status.reason.kind is ReasonKind.START:
        return _NOT_STARTED
    return 1


class _Ending:
    """Decides what a signal means: a question, the job's end in order, or at once."""

    def __init__(
        self, backend: Backend, job: Job, noun: str, question: Question, *, can_leave: bool
    ) -> None:
        self._backend = backend
        self._job = job
        self._what = f"{noun} {job.id}"
        self._question = question
        self._can_leave = can_leave
        #: the signal that ends the job, once one does
        self.signum: int | None = None
        #: True once the job is to go on without us
        self.leaves = False

    def heard(self, number: int) -> None:
        """A signal came."""
        if self.signum is not None:
            self._backend.kill(self._job)
        elif number != signal.SIGINT or self._question.is_open or not can_ask():
            self._end(number)
        else:
            choice = "y: yes, l: leave it running [y/l/N]" if self._can_leave else "[y/N]"
            self._question.ask(f"\nfiber: end {self._what}? {choice} ")

    def answered(self, text: str) -> None:
        """A person answered."""
        if self.signum is not None:
            return
        if text in {"y", "yes"}:
            self._end(signal.SIGINT)
        elif self._can_leave and text in {"l", "leave"}:
            self.leaves = True
        else:
            click.echo(f"fiber: {self._what} goes on", err=True)

    def _end(self, number: int) -> None:
        self.signum = number
        self._backend.terminate(self._job, grace=_GRACE)
        if number == signal.SIGINT and sys.stderr.isatty():
            click.echo(f"fiber: ending {self._what}, Ctrl-C again to kill it", err=True)


def _to_the_end(session: Session, job: Job, watcher: Watcher, ending: _Ending) -> JobStatus | None:
    """The terminal status; None for a job that is left running."""
    previous: JobStatus | None = None
    said = ""
    while not ending.leaves:
        event = watcher.get()
        assert event is not None
        if isinstance(event, int):
            ending.heard(event)
            continue
        if isinstance(event, str):
            ending.answered(event)
            continue
        told, status = event
        if told.id != job.id:
            continue
        session.plugins.notify("fiber_job_changed", job=job, previous=previous, current=status)
        previous = status
        if status.state.is_terminal:
            return status
        if status.state is JobState.PENDING and status.message not in {"", said}:
            said = status.message
            click.echo(f"fiber: {session.info.noun} {job.id} waits: {said}", err=True)
    return None


def _copied(backend: Backend, job: Job) -> threading.Thread:
    """Until the job's end its lines are copied to stdout, on a thread that ends then."""

    def copy() -> None:
        try:
            for line in backend.logs(job, follow=True):
                click.echo(line)
        except FiberError as error:
            click.echo(f"fiber: the output of job {job.id} is incomplete: {error}", err=True)
        except BrokenPipeError:
            # whoever read our output has gone; the job goes on, as it would anywhere
            return

    thread = threading.Thread(target=copy, name="fiber-output", daemon=True)
    thread.start()
    return thread
