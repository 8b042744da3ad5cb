"""Runs a job of the MPI operator's on the selected backend, without the operator."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._ring.mpi.arguments import maps_ranks, read_mpirun
from fiber._ring.mpi.crew import Need
from fiber._ring.mpi.hosts import Host
from fiber._ring.mpi.plan import Plan
from fiber._ring.mpi.vigil import Verdict
from fiber.exceptions import FiberError
from fiber.model import Capabilities, ResourceRequest

if TYPE_CHECKING:
    from fiber._ring.mpi.manifest import MpiJob

__all__ = ["fitted", "plan_of", "try_again"]


def plan_of(job: MpiJob, start_timeout: float) -> Plan:
    """What a manifest's job is as a plan.

    Raises:
        FiberError: its mpirun has no program, or its ranks have no room.
    """
    names = [f"{job.name}-worker-{number}" for number in range(job.workers)]
    if job.launcher_is_member:
        names.insert(0, f"{job.name}-launcher")
    hosts = tuple(Host(name, job.slots) for name in names)
    found = read_mpirun(job.command)
    plan = Plan(
        program=job.command,
        count=0,
        hosts=hosts,
        member=job.worker,
        launcher=job.launcher,
        launcher_is_member=job.launcher_is_member,
        env=job.env,
        deadline=job.deadline,
        start_timeout=start_timeout,
        token=secrets.token_hex(16),
    )
    if found is None:
        # a launcher of another kind, that calls mpirun or its like itself
        return plan
    mpirun, count, words = found
    if not words.program:
        msg = f"the launcher's command names no program: {' '.join(job.command)}"
        raise FiberError(msg)
    return values.evolve(
        plan,
        program=words.program,
        count=sum(host.slots for host in hosts) if count is None else count,
        mpirun=mpirun,
        options=words.options,
        strict=not maps_ranks(words.options),
    )


def fitted(job: MpiJob, can: Capabilities) -> MpiJob:
    """The job without what a backend does not do, which is added to what is unsupported."""
    left: list[str] = []
    kinds = {"Launcher": job.launcher, "Worker": job.worker}
    fit = {kind: _fitted(need, can, f"{kind}'s", left) for kind, need in kinds.items()}
    return values.evolve(
        job,
        launcher=fit["Launcher"],
        worker=fit["Worker"],
        unsupported=(*job.unsupported, *left),
    )


def _fitted(need: Need, can: Capabilities, whose: str, left: list[str]) -> Need:
    asked = need.resources
    cpu = asked.cpu if can.cpu_limit else None
    memory = asked.memory if can.memory_limit else None
    devices = asked.devices if can.devices else {}
    image = need.image if can.images else None
    volumes = need.volumes if can.volumes else ()
    lost = {
        "cpu": cpu != asked.cpu,
        "memory": memory != asked.memory,
        "devices": devices != asked.devices,
        "image": image != need.image,
        "volumes": volumes != need.volumes,
    }
    left += [f"the {whose} {what}, on this backend" for what, is_lost in lost.items() if is_lost]
    return Need(
        resources=ResourceRequest(cpu=cpu, memory=memory, devices=devices),
        image=image,
        volumes=volumes,
    )


def try_again(run: Callable[[], Verdict], retries: int, say: Callable[[str], None]) -> Verdict:
    """Run it, and again while it fails, as often as it may.

    One that somebody ended is not run again.
    """
    while True:
        try:
            verdict = run()
        except FiberError as error:
            if not retries:
                raise
            why = str(error)
        else:
            if verdict.code == 0 or verdict.is_asked or not retries:
                return verdict
            why = verdict.why or f"it ended with {verdict.code}"
        say(f"{why}; it is tried again, at most {retries} times")
        retries -= 1
