"""Runs of this host as their journals tell of them, also those of other processes."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fiber.launch import rundir
from fiber.launch.pids import is_same
from fiber.launch.supervisor.journal import JOURNAL, JournaledJob, read_journal
from fiber.launch.supervisor.kernel import ProcessWatch
from fiber.launch.supervisor.orphans import DETACHED_TITLE

__all__ = ["end_all", "end_processes", "find", "forget", "jobs", "signal_processes"]

#: seconds that killed processes may take to end
_KILLED = 5.0


def jobs(own: str | None, run_id: str | None) -> Iterator[tuple[Path, JournaledJob]]:
    """Jobs of this user with their run directories, as journals tell of them.

    Args:
        own: a run directory that is looked at wherever it is.
        run_id: only that run's; None: all.
    """
    folders = [] if own is None else [Path(own)]
    folders += sorted(rundir.run_root().iterdir())
    for folder in dict.fromkeys(folders):
        if run_id is None or folder.name == run_id or str(folder) == own:
            for job in read_journal(folder).values():
                if run_id is None or job.run_id == run_id:
                    yield folder, job


def find(directory: str, job_id: str) -> JournaledJob | None:
    """A job in the journal of a run directory."""
    return read_journal(directory).get(job_id)


def signal_processes(job: JournaledJob, signum: int, index: int | None = None) -> None:
    """Signal the processes of a job that live and are those that were written down."""
    living = set(job.living())
    for process in job.processes:
        if process.pid in living and process.pid and index in (None, process.index):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signum)


def end_processes(job: JournaledJob, grace: float | None) -> threading.Thread | None:
    """End a job of another process.

    Args:
        job: the job.
        grace: seconds between SIGTERM and SIGKILL; None for SIGKILL at once.

    Returns:
        A thread that waits for the end of the grace, started; None where there is nothing to
        wait for.
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


def end_all(ending: Sequence[JournaledJob]) -> None:
    """Kill jobs of one run and wait for their end, and for supervisors that end with them."""
    waited = {pid for job in ending for pid in job.living()}
    waited |= {job.supervisor[0] for job in ending if is_detached(job.supervisor[0])}
    for job in ending:
        end_processes(job, None)
    deadline = time.monotonic() + _KILLED
    for pid in waited:
        _await_end(pid, max(0.0, deadline - time.monotonic()))


def is_detached(supervisor: int) -> bool:
    """True where that process supervises a detached job and ends with it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{supervisor}/comm").read_text().strip() == DETACHED_TITLE
    return False


def _await_end(pid: int, patience: float) -> None:
    with contextlib.suppress(OSError), contextlib.closing(ProcessWatch(pid)) as watch:
        poll = select.poll()
        poll.register(watch.fileno(), select.POLLIN)
        poll.poll(patience * 1000)


def forget(directory: Path) -> None:
    """Remove what jobs left in a run directory, and the directory itself where its run is over."""
    description = rundir.describe(directory)
    if description is not None and not rundir.has_master(description):
        shutil.rmtree(directory, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        (directory / JOURNAL).unlink()
    shutil.rmtree(directory / "logs", ignore_errors=True)


def _kill_group(pid: int, job: JournaledJob) -> None:
    if is_same(pid, job.start_times.get(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
