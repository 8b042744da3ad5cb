"""Jobs that outlive their submitter: each has a supervisor of its own, bound to nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fiber._agent import rundir
from fiber._agent.supervisor.client import SupervisorClient
from fiber._agent.supervisor.messages import SupervisorOptions
from fiber._agent.supervisor.start import start_supervisor
from fiber.model import JobStatus

__all__ = ["mark_detached", "start_detached"]


def mark_detached(directory: Path) -> None:
    """Have a run directory kept when its master ends: the logs and ends of jobs stay in it."""
    description = rundir.describe(directory)
    if description is not None and not description.get("detached"):
        description["detached"] = True
        new = directory / "run.json.new"
        new.write_text(json.dumps(description))
        new.replace(directory / "run.json")


def start_detached(
    directory: str,
    *,
    run_id: str,
    host: str,
    preload: tuple[str, ...],
    on_status: Callable[[str, JobStatus], None],
    on_notice: Callable[[str], None],
    on_end: Callable[[str], None],
    lease: float,
) -> SupervisorClient:
    """Start a supervisor that ends after its job and with nobody else.

    Args:
        directory: the run directory.
        run_id: the run.
        host: name of this host.
        preload: modules that the job needs.
        on_status: as :class:`SupervisorClient` has it.
        on_notice: likewise.
        on_end: likewise.
        lease: likewise.
    """
    mark_detached(Path(directory))
    options = SupervisorOptions(
        run_id=run_id,
        run_directory=directory,
        master=None,
        host=host,
        preload=preload,
        idle_exit=0.0,
        detached=True,
    )
    channel, process = start_supervisor(options)
    # it forks once and ends, so that the supervisor is no child of ours
    process.wait()
    return SupervisorClient(
        channel, on_status=on_status, on_notice=on_notice, on_end=on_end, lease=lease
    )
