"""Runs of this host as their journals tell of them, also those of other processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from fiber.launch import rundir
from fiber.launch.pids import is_same
from fiber.launch.supervisor.journal import JOURNAL, JournaledJob, read_journal
from fiber.launch.supervisor.kernel import ProcessWatch

__all__ = ["directories", "end_processes", "find", "forget", "signal_processes"]


def directories(own: str | None, run_id: str | None) -> Iterator[Path]:
    """Run directories of this user that have a journal.

    Args:
        own: one that is looked at in any case.
        run_id: only that run's; None: all.
    """
    seen: set[Path] = set()
    candidates = [] if own is None else [Path(own)]
    candidates += sorted(rundir.run_root().iterdir())
    for folder in candidates:
        if folder not in seen and (folder / JOURNAL).is_file():
            seen.add(folder)
            if run_id is None or folder.name == run_id or folder == Path(own or os.devnull):
                yield folder


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
        import select

        for pid in living:
            with contextlib.suppress(OSError), contextlib.closing(ProcessWatch(pid)) as watch:
                poll = select.poll()
                poll.register(watch.fileno(), select.POLLIN)
                poll.poll(grace * 1000)
            _kill_group(pid, job)

    thread = threading.Thread(target=enforce, name=f"fiber-end-{job.id}", daemon=True)
    thread.start()
    return thread


def forget(directory: Path) -> None:
    """Remove what jobs left in a run directory, and the directory itself where its run is over."""
    description = rundir.describe(directory)
    if description is not None and (description.get("detached") or rundir.is_stale(description)):
        shutil.rmtree(directory, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        (directory / JOURNAL).unlink()
    shutil.rmtree(directory / "logs", ignore_errors=True)


def _kill_group(pid: int, job: JournaledJob) -> None:
    if is_same(pid, job.start_times.get(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
