"""Checks of a cluster for ``fiber doctor slurm``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fiber.exceptions import BackendError
from fiber.model import Check

if TYPE_CHECKING:
    from fiber_slurm.config import SlurmConfig
    from fiber_slurm.system import SlurmSystem

__all__ = ["run_checks"]

_LIMITING = re.compile(r"^TaskPlugin\s*=.*task/cgroup", re.MULTILINE)
_TRACKING = re.compile(r"^ProctrackType\s*=\s*proctrack/cgroup", re.MULTILINE)


def run_checks(system: SlurmSystem, config: SlurmConfig) -> Iterator[Check]:
    """Check that Slurm answers, that there are nodes, and what it enforces."""
    try:
        settings = system.settings()
    except BackendError as error:
        fix = "run on a machine where `scontrol ping` says that the controller is up"
        yield Check(name="slurmctld", ok=False, detail=str(error), fix=fix)
        return
    version = re.search(r"^SLURM_VERSION\s*=\s*(\S+)", settings, re.MULTILINE)
    yield Check(name="slurmctld", ok=True, detail=f"Slurm {version[1] if version else ''}".strip())
    try:
        job = system.allocation()
    except BackendError as error:
        fix = "run within salloc or a job script, or set FIBER_SLURM_BY=sbatch"
        yield Check(name="jobs", ok=False, detail=str(error), fix=fix)
        return
    detail = "batch jobs" if job is None else f"steps of the allocation {job}"
    yield Check(name="jobs", ok=True, detail=detail)
    yield _check_nodes(system, config, job)
    if _TRACKING.search(settings):
        yield Check(name="ends of jobs", ok=True, detail="by control groups")
    else:
        detail = "Slurm does not find processes that leave their session"
        fix = "ask for ProctrackType=proctrack/cgroup"
        yield Check(name="ends of jobs", ok=False, detail=detail, fix=fix)
    if _LIMITING.search(settings):
        yield Check(name="limits", ok=True, detail="task/cgroup; whether memory, by cgroup.conf")
    else:
        yield Check(
            name="limits",
            ok=False,
            detail="no limit of memory is enforced",
            fix="ask for TaskPlugin=task/cgroup and ConstrainRAMSpace=yes",
            missing=("memory_limit",),
        )


def _check_nodes(system: SlurmSystem, config: SlurmConfig, job: str | None) -> Check:
    where = f"partition {config.partition}" if config.partition else "the cluster"
    if job is not None:
        where = f"the allocation {job}"
    try:
        capacity = system.capacity()
    except BackendError as error:
        return Check(name="nodes", ok=False, detail=str(error), fix="see what sinfo says")
    if not capacity.cpus:
        fix = "see what sinfo says, and set FIBER_SLURM_PARTITION to a partition with nodes"
        return Check(name="nodes", ok=False, detail=f"no node of {where} is up", fix=fix)
    detail = f"{capacity.cpus:g} CPUs and {capacity.memory} MB of memory in {where}"
    return Check(name="nodes", ok=True, detail=detail)
