"""The runs that have jobs on a host: who owns them, until when, and what is on the disk of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.jobs import combine
from fiber._agent.supervisor.journal import Journal, lost_process, read_journal
from fiber._base import values
from fiber_ssh.remote.job import Job
from fiber_ssh.remote.kernel import clock, complain, kill_marked

__all__ = ["Run", "load_runs"]

#: seconds for a run whose owner was never heard of, and did not say how long it may be silent
_LEASE = 30.0
#: seconds for an owner whose connection was closed: a link that is cut closes none, and who lives
#: dials again at once
_RETURN = 10.0
#: where an agent that comes after this one finds what the owner said
_SAID = "lease"


class Run:
    """One run and its jobs.

    Args:
        root: the agent's folder.
        run_id: the run.
    """

    def __init__(self, root: str, run_id: str) -> None:
        self.id = run_id
        self.directory = os.path.join(root, "runs", run_id)
        self.jobs: dict[str, Job] = {}
        self.lease = _LEASE
        self.expires = clock() + _LEASE
        #: True once its owner said that it is over, or its lease was
        self.is_over = False
        #: True once its jobs are ended and it shall be forgotten with all it left
        self.is_condemned = False
        self._beats: dict[int, float] = {}
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        #: of its jobs
        self.journal = Journal(self.directory, complain)
        self._descriptor = self.journal.open()

    @property
    def work(self) -> str:
        """Where its jobs run whose own directory this host lacks."""
        return os.path.join(self.directory, "work")

    @property
    def _said(self) -> str:
        return os.path.join(self.directory, _SAID)

    def recall(self) -> None:
        """It is of an earlier agent: its owner has as long as it said to be heard of again.

        Jobs that ran under that agent have ended with it.
        """
        with contextlib.suppress(OSError, ValueError), open(self._said, encoding="ascii") as file:
            self.lease = float(file.read())
        self.expires = clock() + self.lease
        folders = set(os.listdir(self.directory))
        left = [job for job in read_journal(self.directory).values() if job.id in folders]
        # their numbers may be those of others by now, their marks are not
        kill_marked(folders - {job.id for job in left if job.ended is not None})
        for job in left:
            process = job.processes[0]
            if not process.state.is_terminal:
                process = lost_process(process)
                self.journal.ended(job.id, process)
            told = {**values.asdict(job), "run": job.run_id}
            one = self.jobs[job.id] = Job(self.folder_of(job.id), told, Descriptors())
            one.update(combine([process], host=job.host))

    def folder_of(self, job_id: str) -> str:
        """Where a job's files are."""
        return os.path.join(self.directory, job_id)

    def attached(self, lease: float) -> None:
        """Its owner is here."""
        if lease != self.lease:
            # a full disk is no reason not to work for it
            with contextlib.suppress(OSError), open(self._said, "w", encoding="ascii") as file:
                file.write(str(lease))
        self.lease = lease
        self.expires = clock() + lease
        self.is_over = False
        self._beats.clear()

    def owner_left(self) -> None:
        """Its owner's connection was closed."""
        self.expires = min(self.expires, clock() + _RETURN)

    def beat_sent(self, number: int) -> None:
        """A heartbeat went to its owner."""
        self._beats[number] = clock()

    def beat_heard(self, number: int) -> None:
        """Its owner heard a heartbeat: the lease counts from when it was sent."""
        sent = self._beats.get(number)
        if sent is None:
            return
        for older in [n for n in self._beats if n <= number]:
            del self._beats[older]
        self.expires = max(self.expires, sent + self.lease)

    def alive(self, *, detached: bool | None = None) -> list[Job]:
        """Jobs that have not ended."""
        return [
            job
            for job in self.jobs.values()
            if not job.has_ended and detached in (None, bool(job.record["detached"]))
        ]

    @property
    def keeps_anything(self) -> bool:
        """True where something of it shall outlive its owner."""
        return any(job.record["detached"] for job in self.jobs.values())

    def forget_attached(self) -> None:
        """Remove what ended jobs left that were not detached."""
        for job_id, job in list(self.jobs.items()):
            if job.has_ended and not job.record["detached"]:
                del self.jobs[job_id]
                shutil.rmtree(job.directory, ignore_errors=True)

    def remove(self) -> None:
        """Remove all it left on the disk."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        shutil.rmtree(self.directory, ignore_errors=True)


def load_runs(root: str) -> Iterator[Run]:
    """What an earlier agent left."""
    folder = os.path.join(root, "runs")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for run_id in sorted(os.listdir(folder)):
        run = Run(root, run_id)
        run.recall()
        yield run
