"""Backend of a batch system: everything that is not the system's own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from fiber._base import values
from fiber.abc import Backend
from fiber.backend_parts.batch.config import BatchConfig
from fiber.backend_parts.batch.folder import Mark, RunFolder, Submitted
from fiber.backend_parts.batch.guard import Guard
from fiber.backend_parts.batch.names import job_name
from fiber.backend_parts.batch.poller import BatchTiming, Poller
from fiber.backend_parts.batch.status import Told, end_status, live_status, needs_word
from fiber.backend_parts.batch.streams import Streams
from fiber.backend_parts.batch.system import Batch, BatchSystem, Phase, Row, script
from fiber.backend_parts.feed import Feed
from fiber.backend_parts.liveness import Liveness, Observation
from fiber.backend_parts.logfile import read_log
from fiber.backend_parts.standard_streams import copy_input
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    SubmitError,
    UnknownJobError,
)
from fiber.model import (
    BackendContext,
    Capacity,
    Check,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Reach,
    ReachKind,
    Reason,
    ReasonKind,
)

__all__ = ["BatchBackend"]

#: answers of the system without a job, after which it knows it no longer
_ABSENT = 2
#: part of a short time limit before whose end a job gets no more work
_SHARE = 10


@values.define(kw_only=True)
class _Tracked:
    """A job that has not ended, as this program knows it."""

    job: Job
    folder: RunFolder
    key: str
    detached: bool
    #: number of the first question that was asked after it was submitted
    since: int
    mark: Mark = values.field(factory=Mark)
    row: Row | None = None
    absent: int = 0
    told: Told | None = None
    #: when its program's end was seen first, and when the system said first that it has ended
    ended_at: float | None = None
    over_at: float | None = None
    urged_at: float = 0.0
    #: seconds that it had when it was seen first
    limit: float | None = None

    @property
    def is_in_transit(self) -> bool:
        """True where it is on its way in or out; one that waits may wait for hours."""
        seen = (self.mark.ended, self.told, self.over_at)
        return self.mark.host is None or any(each is not None for each in seen)


class BatchBackend(Backend):
    """Backend whose jobs wait in the queue of a batch system; a plugin subclasses it.

    Programs, private bytes, output and ends of jobs are files of a folder that all nodes see
    (:class:`~fiber.backend_parts.batch.folder.RunFolder`). The system is asked for all jobs at once, at most
    once a second; the marks in the folder are looked at more often, which costs it nothing.

    Threads: one that asks and looks (``fiber-NAME-poll``), from the first job on. Locks: one for the
    jobs, one that is held while the system is asked for them.

    Args:
        context: settings and run.
        system: the batch system.
        config: the settings that all of them have.
    """

    def __init__(self, context: BackendContext, system: BatchSystem, config: BatchConfig) -> None:
        self._context = context
        self._system = system
        self._config = config
        self._timing = BatchTiming.at(context.timing.scale)
        self._base = config.folder.expanduser().absolute()
        self._python = config.python or sys.executable
        self._feed = Feed()
        self._streams = Streams(system.title, context.timing.stream_answer)
        self._poller = Poller(self.name, self._ask, self._look, self._timing)
        self._lock = threading.RLock()
        self._asking = threading.Lock()
        self._folders: dict[str, RunFolder] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._known: dict[str, int] = {}
        self._watched: set[str] = set()
        self._rows: dict[str, Row] = {}
        self._questions = 0
        self._answered_at = float("-inf")
        self._guard: Guard | None = None
        self._grace: float | None = None
        self._grace_known = False
        self._signs = 0
        self._signed_at = float("-inf")
        self._owner = os.getpid()
        self._closed = False

    # -- jobs ---------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> Job:
        """Put a job into the queue."""
        (made,) = self.submit_many([spec])
        if isinstance(made, BaseException):
            raise made
        return made

    def submit_many(self, specs: Sequence[JobSpec]) -> Sequence[Job | BackendError]:
        """Put jobs into the queue, those that are alike in one submission."""
        made: list[Job | BackendError | None] = [None] * len(specs)
        alike: dict[Any, list[int]] = {}
        for number, spec in enumerate(specs):
            if spec.argv:
                alike.setdefault(_kind(spec), []).append(number)
            else:
                made[number] = SubmitError(f"{spec.name} has no program to run: argv is empty")
        for numbers in alike.values():
            most = max(1, self._system.most)
            for first in range(0, len(numbers), most):
                some = numbers[first : first + most]
                done = self._submit([specs[number] for number in some])
                for number, one in zip(some, done, strict=True):
                    made[number] = one
        return [one for one in made if one is not None]

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Changes of the jobs of a run, also of those that other programs submitted."""
        with self._lock:
            if run_id != self._context.run_id:
                self._watched.add(run_id)
                self._find(run_id)
        stream = self._feed.events(run_id)
        if run_id != self._context.run_id or self._tracked:
            self._poller.expect()
        return stream

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """The present status of jobs, also of those that other programs submitted."""
        if any(self._feed.end(job.id) is None for job in jobs):
            self._refresh()
        return [self._status(job) for job in jobs]

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """SIGTERM to the job's program; SIGKILL to all that is left after the grace."""
        self._tell(job, signal.SIGTERM, grace)

    def kill(self, job: Job) -> None:
        """SIGKILL to all processes of a job."""
        self._tell(job, signal.SIGKILL, 0.0)

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, without their newlines."""
        self.status([job])
        folder, key = self._place(job)

        def is_over() -> bool:
            return bool(self._feed.end(job.id)) or self._status(job).state.is_terminal

        return read_log(
            folder.log(key),
            tail=tail,
            is_over=is_over if follow else None,
            interval=self._timing.look,
        )

    def exec(
        self,
        job: Job,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None = None,
        tty: bool = False,
    ) -> int:
        """Run a program beside a job, with its environment, our streams and its directory."""
        folder, key = self._place(job)
        node = str(folder.path / "node.py")
        words = (self._python, "-I", "-S", node, "--beside", str(folder.path), key, *argv)
        command = self._system.beside(job.id, words, tty=tty)
        source: Any = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        with subprocess.Popen(command, stdin=source) as process:
            if stdin is not None:
                sink = process.stdin
                assert sink is not None

                def write(data: bytes) -> None:
                    sink.write(data)
                    # what is typed must not wait for a full piece
                    sink.flush()

                copy_input(stdin, write, sink.close, (OSError, ValueError))
            return process.wait()

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """The jobs whose files are there, of one run or of all runs of this user."""
        self._refresh()
        with self._lock:
            folders = RunFolder.all(self._root()) if run_id is None else [self._folder(run_id)]
            return [self._job(folder, one) for folder in folders for one in folder.jobs()]

    def cleanup(self, run_id: str) -> None:
        """End the jobs of a run and remove its folder."""
        folder = self._folder(run_id)
        if not folder.exists() and run_id not in {row.run_id for row in self._rows.values()}:
            return
        self._refresh()
        with self._lock:
            self._find(run_id)
            ids = [id_ for id_, row in self._rows.items() if row.run_id == run_id]
            ids += [id_ for id_, one in self._tracked.items() if one.job.run_id == run_id]
        self._end(list(dict.fromkeys(ids)))
        with self._lock:
            self._folders.pop(run_id, None)
            guard = self._guard if run_id == self._context.run_id else None
            if guard is not None:
                self._guard = None
        if guard is not None:
            guard.dismiss()
        folder.remove()

    def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove the folders of runs whose program is dead and whose jobs have ended."""
        self._refresh()
        alive = {row.run_id for row in self._rows.values() if row.phase is not Phase.ENDED}
        candidates = [
            folder
            for folder in RunFolder.all(self._root())
            if folder.run_id != self._context.run_id and folder.run_id not in alive
        ]
        dead = [one for one in candidates if one.liveness() is Liveness.DEAD]
        unknown = [one for one in candidates if one.liveness() is Liveness.UNKNOWN]
        dead += self._silent(unknown)
        if not dry_run:
            for folder in dead:
                folder.remove()
        return [folder.run_id for folder in dead]

    # -- the platform -------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Capacity of the batch system."""
        return self._system.capacity()

    def reach(self, job: Job) -> Reach:
        """Jobs dial this program, or it opens streams into them."""
        if self._config.reach == "streams":
            return Reach(ReachKind.REVERSED, "streams by programs beside the job")
        return Reach(ReachKind.DIRECT, "the job dials this machine from its node")

    def open_stream(self, job: Job) -> socket.socket:
        """A socket joined to a program beside the job, which dials it."""
        with self._lock:
            one = self._tracked.get(job.id)
            port = None if one is None else one.mark.port
        words = (self._python, "-m", "fiber.backend_parts.bridge", f"streams:127.0.0.1:{port}")
        command = self._system.stream(job.id, words)
        if port is None:
            msg = f"{job.name} takes no streams of this program now"
            raise BackendUnavailableError(msg)
        return self._streams.open(command, job.name)

    def check(self) -> Iterable[Check]:
        """Check the batch system, then the shared folder."""
        yield from self._system.checks()
        yield self._check_folder()

    def close(self) -> None:
        """End all jobs of this run that are not detached, and remove what nobody needs."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return
            self._closed = True
            own = self._context.run_id
            mine = [
                id_
                for id_, one in self._tracked.items()
                if one.job.run_id == own and not one.detached
            ]
            guard, folder = self._guard, None if own is None else self._folders.get(own)
        try:
            self._end(mine)
        except BackendUnavailableError:
            # it goes on trying
            if guard is not None:
                guard.leave()
            raise
        else:
            if guard is not None:
                guard.dismiss()
            if folder is not None:
                if any(job.detached for job in folder.jobs()):
                    folder.release()
                else:
                    folder.remove()
        finally:
            self._streams.close()
            self._poller.close()
            self._feed.close()

    # -- submission ---------------------------------------------------------------------------

    def _submit(self, specs: Sequence[JobSpec]) -> Sequence[Job | BackendError]:
        """Submit jobs that are alike."""
        run_id, detached = specs[0].run_id, specs[0].detached
        keys = f"{secrets.token_hex(4)}-"
        added: list[str] = []
        folder: RunFolder | None = None
        try:
            folder = self._folder(run_id)
            folder.create()
            # before there is a job that it could miss
            self._guarded(folder, detached=detached)
            for number, spec in enumerate(specs):
                added.append(f"{keys}{number}")
                streams = self._config.reach == "streams" and spec.ident is not None
                env = self._environment(spec)
                folder.add(
                    added[-1],
                    self._for_node(spec),
                    env,
                    streams=streams,
                    host_variable=self._system.host_variable,
                )
            batch = Batch(
                name=job_name(run_id, detached=detached),
                script=script(
                    folder.path,
                    keys,
                    self._system.index_variable if len(specs) > 1 else "",
                    python=self._python,
                    prologue=self._config.prologue,
                ),
                specs=tuple(specs),
                output=folder.path / "logs" / f"{keys}system",
            )
            ids = self._system.submit(batch)
        except BackendError as error:
            for key in added:
                assert folder is not None
                folder.forget(key)
            return [error] * len(specs)
        submitted = [
            Submitted(
                id=id_, key=key, name=spec.name, argv=spec.argv, at=time.time(), detached=detached
            )
            for id_, key, spec in zip(ids, added, specs, strict=True)
        ]
        with self._lock:
            folder.submitted(submitted)
            jobs: list[Job | BackendError] = [self._track(folder, one).job for one in submitted]
        self._poller.expect()
        return jobs

    def _guarded(self, folder: RunFolder, *, detached: bool) -> None:
        timing = self._timing
        with self._lock:
            if self._guard is None:
                self._guard = Guard(
                    self._system.guard(job_name(folder.run_id)),
                    folder.path,
                    pause=self._context.timing.lease_grace,
                    retry=timing.guard_retry,
                    patience=timing.guard_patience,
                )
            guard = self._guard
        if detached:
            guard.keep()
        else:
            guard.start()

    def _for_node(self, spec: JobSpec) -> JobSpec:
        if spec.entry is None:
            return spec
        return values.evolve(spec, argv=(self._python, *spec.argv[1:]))

    def _environment(self, spec: JobSpec) -> Mapping[str, str]:
        if spec.entry is None:
            return spec.env
        if not self._grace_known:
            self._grace, self._grace_known = self._system.grace(), True
        grace = {} if self._grace is None else {"FIBER_GRACE": f"{self._grace:g}"}
        return {**grace, **spec.env}

    # -- what is known ------------------------------------------------------------------------

    def _folder(self, run_id: str) -> RunFolder:
        with self._lock:
            if run_id not in self._folders:
                self._folders[run_id] = RunFolder(self._root(), run_id)
            return self._folders[run_id]

    def _root(self) -> Path:
        """Folder of all runs of this user on this cluster: what is over there is its to say."""
        return self._base / self.name / self._system.cluster()

    def _job(self, folder: RunFolder, submitted: Submitted) -> Job:
        return Job(
            id=submitted.id,
            name=submitted.name,
            run_id=folder.run_id,
            backend=self.name,
            data={"key": submitted.key},
            argv=submitted.argv,
            submitted=submitted.at,
        )

    def _track(self, folder: RunFolder, submitted: Submitted) -> _Tracked:
        one = _Tracked(
            job=self._job(folder, submitted),
            folder=folder,
            key=submitted.key,
            detached=submitted.detached,
            since=self._questions + 1,
        )
        self._tracked[submitted.id] = one
        self._publish(one)
        return one

    def _find(self, run_id: str) -> None:
        """Track jobs of a run that other programs submitted."""
        folder = self._folder(run_id)
        jobs = folder.jobs()
        for submitted in jobs[self._known.get(run_id, 0) :]:
            if submitted.id not in self._tracked and self._feed.status(submitted.id) is None:
                self._track(folder, submitted).row = self._rows.get(submitted.id)
        self._known[run_id] = len(jobs)

    def _place(self, job: Job) -> tuple[RunFolder, str]:
        """Folder and key of a job."""
        folder = self._folder(job.run_id)
        key = job.data.get("key")
        if not isinstance(key, str) or not (folder.path / "jobs" / f"{key}.json").exists():
            msg = f"there is no job {job.id} ({job.name}) of {self._system.title} here"
            raise UnknownJobError(msg)
        return folder, key

    def _status(self, job: Job) -> JobStatus:
        status = self._feed.status(job.id)
        if status is not None and (status.state.is_terminal or job.id in self._tracked):
            return status
        # another program's: what is known of it now, without a stream
        folder, key = self._place(job)
        row, mark = self._rows.get(job.id), folder.mark(key)
        is_over = row is None or row.phase is Phase.ENDED or mark.ended is not None
        if is_over:
            return end_status(self._system.title, row, mark, None)
        return live_status(row, mark, self._grace)

    # -- questions and looks ------------------------------------------------------------------

    def _refresh(self) -> None:
        """Know what the system says now, or said within the last second."""
        began = time.monotonic()
        with self._asking:
            # another thread may have asked meanwhile
            if began >= self._answered_at + self._timing.ask:
                self._question()
        self._look()

    def _ask(self) -> None:
        with self._lock:
            if not self._tracked and not self._watched:
                return
        self._question_now()

    def _question_now(self) -> None:
        with self._asking:
            self._question()

    def _question(self) -> None:
        with self._lock:
            self._questions += 1
            number = self._questions
        rows = {row.id: row for row in self._system.rows()}
        now = time.monotonic()
        self._poller.asked()
        with self._lock:
            self._rows = rows
            self._answered_at = now
            for one in self._tracked.values():
                if one.since > number:
                    continue
                row = rows.get(one.job.id)
                one.absent = 0 if row is not None else one.absent + 1
                one.row = row or one.row
                if one.limit is None and row is not None:
                    one.limit = row.seconds_left
                if one.over_at is None and (
                    one.absent >= _ABSENT or (row is not None and row.phase is Phase.ENDED)
                ):
                    one.over_at = now

    def _look(self) -> None:
        """Read new marks, tell what is new of all jobs, and do what is due."""
        now = time.monotonic()
        self._sign(now)
        with self._lock:
            for run_id in self._watched:
                self._find(run_id)
            folders = {id(one.folder): one.folder for one in self._tracked.values()}
            seen = {key: set(folder.marks()) for key, folder in folders.items()}
            urgent: dict[str, bool] = {}
            for one in list(self._tracked.values()):
                marks = seen[id(one.folder)]
                has_ended = (one.key, "ended") in marks
                if (one.mark.host is None and (one.key, "started") in marks) or (
                    has_ended and one.mark.ended is None
                ):
                    one.mark = one.folder.mark(one.key)
                if one.mark.ended is not None and one.ended_at is None:
                    one.ended_at = now
                    self._poller.expect()
                self._publish(one)
                was_killed = one.told is not None and one.told.signum == signal.SIGKILL
                if self._is_due(one, now):
                    urgent[one.job.id] = was_killed
            if not any(one.is_in_transit for one in self._tracked.values()):
                self._poller.calm()
        for job_id, was_killed in urgent.items():
            with contextlib.suppress(BackendUnavailableError):
                if was_killed:
                    self._system.end([job_id])
                else:
                    self._system.signal([job_id], signal.SIGKILL)

    def _sign(self, now: float) -> None:
        """Give a sign of life where it is due, and see what nodes have marked."""
        own = self._context.run_id
        with self._lock:
            folder = None if own is None else self._folders.get(own)
            is_live = any(one.folder is folder for one in self._tracked.values())
            pause = self._timing.ask if is_live else self._timing.sign
            if folder is None or now - self._signed_at < pause or os.getpid() != self._owner:
                return
            self._signed_at = now
            self._signs += 1
        if folder.exists():
            folder.renew(self._signs)

    def _publish(self, one: _Tracked) -> None:
        now = time.monotonic()
        status = self._end_of(one, now)
        if status is None:
            notice = 0.0 if one.limit is None else one.limit / _SHARE
            notice = min(notice, self._timing.notice)
            live = live_status(one.row, one.mark, self._grace, notice)
            self._feed.publish(one.job, live)
            return
        del self._tracked[one.job.id]
        self._feed.publish(one.job, status)

    def _end_of(self, one: _Tracked, now: float) -> JobStatus | None:
        """The status of its end; None while there is none, or something better may come."""
        timing, title = self._timing, self._system.title
        is_over = one.over_at is not None
        if one.mark.ended is not None:
            assert one.ended_at is not None
            waits = needs_word(one.mark.ended, one.told) and now - one.ended_at < timing.word
            if is_over or not waits:
                return end_status(title, one.row, one.mark, one.told)
            return None
        if one.over_at is not None:
            # a network file system shows the mark later
            ended = one.row is not None and one.row.exit_code == 0
            if now - one.over_at < (timing.mark if ended else timing.look):
                return None
            return end_status(title, one.row, one.mark, one.told)
        if one.told is not None and now > one.told.kill_at + timing.confirm:
            host = one.mark.host or (None if one.row is None else one.row.host)
            message = f"{title} did not confirm its end on {host or 'its node'}"
            return JobStatus(
                state=JobState.FAILED,
                reason=Reason(ReasonKind.NODE_LOST),
                message=message,
                host=host,
            )
        return None

    def _is_due(self, one: _Tracked, now: float) -> bool:
        """Return True where a job is to be killed now, and note that it was."""
        if one.job.id not in self._tracked or one.told is None or now < one.told.kill_at:
            return False
        if one.urged_at and now - one.urged_at < self._timing.kill_again:
            return False
        one.urged_at = now
        one.told = values.evolve(one.told, signum=int(signal.SIGKILL))
        return True

    # -- ends ---------------------------------------------------------------------------------

    def _tell(self, job: Job, signum: int, grace: float) -> None:
        if self._feed.end(job.id):
            return
        with self._lock:
            one = self._tracked.get(job.id)
        if one is None:
            self._refresh()
            folder, key = self._place(job)
            if job.id not in self._rows:
                # the last answer may be older than the job
                self._question_now()
            row = self._rows.get(job.id)
            if row is None or row.phase is Phase.ENDED:
                return
            with self._lock:
                found = [item for item in folder.jobs() if item.key == key]
                one = self._tracked.get(job.id) or self._track(folder, found[0])
        now = time.monotonic()
        with self._lock:
            kill_at = now + grace
            if one.told is not None:
                kill_at = min(kill_at, one.told.kill_at)
            one.told = Told(signum=int(signum), at=now, kill_at=kill_at)
            if signum == signal.SIGKILL:
                one.urged_at = now
        self._system.signal([job.id], signum)
        self._poller.expect()

    def _end(self, ids: Sequence[str]) -> None:
        """Kill jobs, and wait until they have ended."""
        now = time.monotonic()
        with self._lock:
            live = [
                id_
                for id_ in ids
                if id_ in self._tracked
                or (id_ in self._rows and self._rows[id_].phase is not Phase.ENDED)
            ]
            for id_ in live:
                if id_ in self._tracked:
                    told = Told(signum=int(signal.SIGKILL), at=now, kill_at=now)
                    self._tracked[id_].told = told
                    self._tracked[id_].urged_at = now
        if not live:
            return
        self._system.signal(live, signal.SIGKILL)
        self._poller.expect()
        until = time.monotonic() + self._timing.confirm + self._timing.mark
        left = set(live)
        while left and time.monotonic() < until:
            self._refresh()
            with self._lock:
                left = {
                    id_
                    for id_ in left
                    if id_ in self._tracked
                    or (id_ in self._rows and self._rows[id_].phase is not Phase.ENDED)
                }
            if left:
                # its end is an event that a batch system tells nobody of
                time.sleep(self._timing.look)

    # -- sweeps and checks --------------------------------------------------------------------

    def _silent(self, folders: Sequence[RunFolder]) -> Sequence[RunFolder]:
        """Folders whose program renewed nothing while they were watched."""
        if not folders:
            return []
        timing = self._timing
        observation: Observation[str] = Observation(gap=timing.silence)
        until = time.monotonic() + timing.silence + timing.sign
        while (now := time.monotonic()) < until:
            renewed = {folder.run_id: folder.renewed() for folder in folders}
            observation.looked(renewed, now)
            time.sleep(timing.sign / 2)
        return [one for one in folders if observation.unchanged(one.run_id) >= timing.silence]

    def _check_folder(self) -> Check:
        name = "shared folder"
        probe = self._base / f".check-{secrets.token_hex(4)}"
        try:
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            fix = "set the folder to one that you may write to and all nodes see"
            return Check(name=name, ok=False, detail=f"{self._base}: {error}", fix=fix)
        return Check(name=name, ok=True, detail=str(self._base))


def _kind(spec: JobSpec) -> Any:
    """Key of a job; jobs with the same key are submitted together."""
    resources = spec.resources
    return (
        spec.run_id,
        spec.detached,
        resources.cpu,
        resources.memory,
        tuple(sorted(resources.devices.items())),
        spec.avoid_hosts,
    )
