"""Jobs of this user on this host, from the journals of all runs, and signals to their processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fiber._agent import rundir
from fiber._agent.supervisor.journal import JOURNAL, JournaledJob, JournalReader
from fiber._agent.supervisor.kernel import ProcessWatch
from fiber._agent.supervisor.orphans import DETACHED_TITLE
from fiber.backend_parts.liveness import Liveness, Owner, is_same, liveness_of

__all__ = ["Journals", "end_all", "end_processes", "forget", "signal_processes"]


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
