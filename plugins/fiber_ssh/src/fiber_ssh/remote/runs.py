"""The runs that have jobs on a host, and what is on the disk of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.journal import Journal, lost_process, read_journal
from fiber_ssh.remote.job import Job
from fiber_ssh.remote.kernel import complain, kill_marked

__all__ = ["LEASE", "Run", "load_runs"]

#: seconds for a run whose owner was never heard of, and did not say how long it may be silent
LEASE = 30.0
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
        #: seconds for which its owner may be silent
        self.lease = LEASE
        #: True once its jobs are ended and it shall be forgotten with all it left
        self.is_condemned = False
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
        """It is of an earlier agent, under which its jobs have ended."""
        with contextlib.suppress(OSError, ValueError), open(self._said, encoding="ascii") as file:
            self.lease = float(file.read())
        folders = set(os.listdir(self.directory))
        left = [job for job in read_journal(self.directory).values() if job.id in folders]
        # their numbers may be those of others by now, their marks are not
        kill_marked(folders - {job.id for job in left if job.ended is not None})
        for job in left:
            process = job.processes[0]
            if not process.state.is_terminal:
                process = lost_process(process)
                self.journal.ended(job.id, process)
                job.processes[0] = process
            self.jobs[job.id] = Job(self.folder_of(job.id), job, Descriptors())

    def folder_of(self, job_id: str) -> str:
        """Where a job's files are."""
        return os.path.join(self.directory, job_id)

    def keep_lease(self, lease: float) -> None:
        """Note for how long its owner says that it may be silent, also for the next agent."""
        if lease != self.lease:
            # a full disk is no reason not to work for it
            with contextlib.suppress(OSError), open(self._said, "w", encoding="ascii") as file:
                file.write(str(lease))
        self.lease = lease

    def alive(self, *, detached: bool | None = None) -> list[Job]:
        """Jobs that have not ended."""
        return [
            job
            for job in self.jobs.values()
            if not job.has_ended and detached in (None, job.known.detached)
        ]

    @property
    def keeps_anything(self) -> bool:
        """True where something of it shall outlive its owner."""
        return any(job.known.detached for job in self.jobs.values())

    def forget_attached(self) -> None:
        """Remove what ended jobs left that were not detached."""
        for job_id, job in list(self.jobs.items()):
            if job.has_ended and not job.known.detached:
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
