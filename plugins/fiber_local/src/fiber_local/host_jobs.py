"""Jobs of this user on this host, from the journals of all runs, and signals to their processes.

Changes of jobs that other processes submitted are found by comparing their journals over time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fiber._agent import rundir
from fiber._agent.supervisor import JOURNAL
from fiber._agent.supervisor.journal import JournaledJob, JournalReader
from fiber._agent.supervisor.kernel import ProcessWatch
from fiber._agent.supervisor.orphans import DETACHED_TITLE
from fiber.backend_parts.liveness import Liveness, Owner, is_same, liveness_of
from fiber.model import Job, JobStatus

__all__ = ["JournalFollower", "Journals", "end_all", "end_processes", "forget", "signal_processes"]


class Journals:
    """Journals of this user's runs on this host; thread-safe.

    Args:
        own: a run directory that is included wherever it is.
    """

    def __init__(self, own: str | None) -> None:
        self._own = own
        self._histories: dict[str, JournalReader] = {}
        self._lock = threading.Lock()

    def jobs(self, run_id: str | None) -> Iterator[tuple[Path, JournaledJob]]:
        """Yield run directories and jobs.

        Args:
            run_id: the run; None for all runs.
        """
        folders = [] if self._own is None else [Path(self._own)]
        folders += sorted(rundir.run_root().iterdir())
        for folder in dict.fromkeys(folders):
            if run_id is None or folder.name == run_id or str(folder) == self._own:
                for job in self._read(str(folder)):
                    if run_id is None or job.run_id == run_id:
                        yield folder, job

    def find(self, directory: str, job_id: str) -> JournaledJob | None:
        """Return a job from the journal of a run directory; None where it is not there."""
        return next((job for job in self._read(directory) if job.id == job_id), None)

    def _read(self, directory: str) -> list[JournaledJob]:
        with self._lock:
            if directory not in self._histories:
                self._histories[directory] = JournalReader(directory)
            return list(self._histories[directory].jobs().values())


def signal_processes(job: JournaledJob, signum: int, index: int | None = None) -> None:
    """Signal the living processes of a job, where pid and start time match its journal."""
    living = set(job.living())
    for process in job.processes:
        if process.pid in living and process.pid and index in (None, process.index):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signum)


def end_processes(job: JournaledJob, grace: float | None) -> threading.Thread | None:
    """Terminate or kill a job that another process submitted.

    Args:
        job: the job.
        grace: seconds between SIGTERM and SIGKILL; None for SIGKILL at once.

    Returns:
        The started thread that enforces the grace period; None where there is nothing to wait for.
    """
    living = job.living()
    if not living:
        return None
    if grace is None:
        for pid in living:
            _kill_group(pid, job)
        return None
    signal_processes(job, signal.SIGTERM)

    def enforce() -> None:
        for pid in living:
            _await_end(pid, grace)
            _kill_group(pid, job)

    thread = threading.Thread(target=enforce, name=f"fiber-end-{job.id}", daemon=True)
    thread.start()
    return thread


def end_all(ending: Sequence[JournaledJob], timeout: float) -> None:
    """Kill jobs of one run, and wait for their processes and their own supervisors to end."""
    waited = {pid for job in ending for pid in job.living()}
    waited |= {job.supervisor.pid for job in ending if is_detached(job.supervisor)}
    for job in ending:
        end_processes(job, None)
    deadline = time.monotonic() + timeout
    for pid in waited:
        _await_end(pid, max(0.0, deadline - time.monotonic()))


def is_detached(supervisor: Owner) -> bool:
    """True where a process lives and is the supervisor of a detached job, by its title."""
    if supervisor.liveness() is not Liveness.ALIVE:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{supervisor.pid}/comm").read_text().strip() == DETACHED_TITLE
    return False


def _await_end(pid: int, timeout: float) -> None:
    with contextlib.suppress(OSError), contextlib.closing(ProcessWatch(pid)) as watch:
        poll = select.poll()
        poll.register(watch.fileno(), select.POLLIN)
        poll.poll(timeout * 1000)


def forget(directory: Path) -> None:
    """Remove the logs and the journal of a run directory, or all of it where its run is over."""
    if liveness_of(directory) is Liveness.DEAD:
        rundir.remove(directory)
        return
    with contextlib.suppress(FileNotFoundError):
        (directory / JOURNAL).unlink()
    import shutil

    shutil.rmtree(directory / "logs", ignore_errors=True)


def _kill_group(pid: int, job: JournaledJob) -> None:
    if is_same(pid, job.start_times.get(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


class JournalFollower:
    """Reads the jobs of a run repeatedly, and returns those whose status has changed.

    Args:
        read: returns the jobs of a run and their statuses, from journals.
        is_ours: whether a job's changes are reported otherwise, so that it is skipped.
        is_open: False to follow only the jobs of the first read.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[tuple[Job, JobStatus]]],
        is_ours: Callable[[Job], bool],
        *,
        is_open: bool,
    ) -> None:
        self._read = read
        self._is_ours = is_ours
        self._is_open = is_open
        self._has_read = False
        self._last: dict[str, JobStatus] = {}

    def changes(self) -> list[tuple[Job, JobStatus]] | None:
        """Read the jobs; return those whose status has changed since the last call.

        Returns:
            None where no more changes are possible.
        """
        is_over = self._has_read and not self._is_open
        if is_over and all(status.state.is_terminal for status in self._last.values()):
            return None
        found = []
        for job, status in self._read():
            last = self._last.get(job.id)
            if last is None and (self._is_ours(job) or (self._has_read and not self._is_open)):
                continue
            if last != status and not (last and last.state.is_terminal):
                self._last[job.id] = status
                found.append((job, status))
        self._has_read = True
        return found
