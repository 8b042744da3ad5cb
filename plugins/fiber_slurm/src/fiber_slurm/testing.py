"""Witness of the conformance kit for Slurm: asks by Slurm's own commands."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from fiber.abc import Backend
from fiber.backend_parts.batch.names import job_name
from fiber.model import Job
from fiber.testing import HostWitness
from fiber_slurm import sruns
from fiber_slurm.steps import BESIDE, FORMAT, read_steps, run_of_step

__all__ = ["SlurmWitness"]

#: messages that come from nodes and from the witness itself
_NOT_OURS = (
    *("MESSAGE_", "REQUEST_COMPLETE", "REQUEST_STEP_COMPLETE", "REQUEST_EPILOG", "REQUEST_PING"),
    *("REQUEST_STATS_INFO", "REQUEST_NODE_REGISTRATION", "REQUEST_RECONFIGURE"),
)
_COUNT = re.compile(r"([A-Z]\w+)\s*\(\s*\d+\)\s*count:(\d+)")


class SlurmWitness(HostWitness):
    """Sees jobs and steps in squeue; their processes too, where the nodes are this machine.

    Args:
        backend: what ``fiber plugin check`` tests; Slurm is asked without it.
    """

    def __init__(self, backend: Backend | None = None) -> None:
        super().__init__()

    def left(self, run_id: str) -> Sequence[str]:
        """Processes here, and jobs that have not ended."""
        names = f"{job_name(run_id)},{job_name(run_id, detached=True)}"
        jobs = _run("squeue", "--noheader", f"--name={names}", "--format=job %i: %T")
        placed = read_steps(_run("squeue", "--steps", "--noheader", f"--Format={FORMAT}"))
        found = [f"step {step.number}" for step in placed if _is_of(step.name, run_id)]
        found += [f"srun {pid}" for pid, _ in sruns.waiting(lambda name: _is_of(name, run_id))]
        return [*super().left(run_id), *jobs.splitlines(), *found]

    def suspend(self, job: Job) -> None:
        """Suspend a job by scontrol, which takes an operator; of a step, all of its allocation."""
        _run("scontrol", "suspend", job.id.partition(".")[0])

    def calls(self) -> int:
        """Requests that slurmctld was sent by users, by sdiag."""
        by_type = _run("sdiag").partition("by message type")[2].partition("by user")[0]
        return sum(
            int(count) for name, count in _COUNT.findall(by_type) if not name.startswith(_NOT_OURS)
        )


def _is_of(name: str, run_id: str) -> bool:
    found = run_of_step(name.removesuffix(BESIDE))
    return found is not None and found[0] == run_id


def _run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
