"""Checks of ``fiber doctor local``: limits, run directories, a job of their own, devices."""

from __future__ import annotations

import queue
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fiber._agent import rundir
from fiber._base import values
from fiber._base.cgroups import cpu_count, memory_total
from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError, FiberError, ResourceError
from fiber.model import (
    BackendContext,
    Check,
    JobSpec,
    JobState,
    JobStatus,
    ResourceRequest,
    Timing,
)
from fiber_local.config import LocalConfig, LocalTiming
from fiber_local.supervisors import HostDevices, Supervisors

__all__ = ["run_checks"]

#: descriptors that a run of a thousand workers needs
_DESCRIPTORS = 8192
#: limits that a job asks for, by the capability that enforces them
_LIMITS = {
    "memory_limit": ResourceRequest(memory=256),
    "cpu_limit": ResourceRequest(cpu=1),
}


def run_checks(providers: Mapping[str, ResourceProvider], timing: Timing) -> Iterator[Check]:
    """Check this host; nothing is left behind.

    Args:
        providers: installed resource providers by kind.
        timing: durations.
    """
    yield Check(name="room", ok=True, detail=f"{cpu_count()} CPUs, {memory_total()} MB of memory")
    yield _check_descriptors()
    try:
        root = rundir.run_root()
        with tempfile.TemporaryDirectory(dir=root, prefix="check-") as folder:
            yield Check(name="run directories", ok=True, detail=f"{root} can be written")
            yield from _check_job(folder, timing)
    except (OSError, FiberError) as error:
        fix = "set XDG_RUNTIME_DIR to a folder of yours with mode 700 and room to write"
        yield Check(name="run directories", ok=False, detail=str(error), fix=fix)
    devices = HostDevices(providers)
    for kind in sorted(providers):
        yield _check_devices(devices, kind)


def _check_descriptors() -> Check:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    enough = hard == resource.RLIM_INFINITY or hard >= _DESCRIPTORS
    count = "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard}"
    return Check(
        name="open files",
        ok=enough,
        detail=f"{count}; a run with a thousand workers needs {_DESCRIPTORS}",
        fix="" if enough else f"raise the hard limit: ulimit -Hn {_DESCRIPTORS}",
    )


def _check_job(folder: str, timing: Timing) -> Iterator[Check]:
    timeout = LocalTiming.at(timing.scale).trial_job
    name = "a job from start to end"
    statuses: queue.SimpleQueue[JobStatus] = queue.SimpleQueue()
    supervisors = Supervisors(
        BackendContext(run_id="0" * 8, run_directory=folder, timing=timing),
        LocalConfig(),
        socket.gethostname(),
        HostDevices({}),
        lambda _, status: statuses.put(status),
    )
    spec = JobSpec(
        run_id="0" * 8, name="check", argv=(sys.executable, "-c", "import sys; sys.exit(42)")
    )
    warnings: dict[str, Sequence[str]] = {}
    begin = time.monotonic()
    try:
        for capability, request in _LIMITS.items():
            limited = values.evolve(spec, resources=request)
            reply = supervisors.submit(limited, lambda _: None, cwd=folder)
            warnings[capability] = reply.warnings
        status = statuses.get(timeout=timeout)
        while not status.state.is_terminal:
            status = statuses.get(timeout=timeout)
    except (BackendError, OSError, queue.Empty) as error:
        words = str(error) or f"it has not ended after {timeout:g} s"
        fix = f"see whether {sys.executable} -c 'import fiber' works, and what it prints"
        yield Check(name=name, ok=False, detail=words, fix=fix)
        return
    finally:
        supervisors.close()
    yield _judge_job(name, status, time.monotonic() - begin)
    yield from _judge_limits(warnings)
    log = Path(folder, "jobs.jsonl")
    yield Check(
        name="journal",
        ok=log.is_file(),
        detail="written" if log.is_file() else "missing",
        fix="" if log.is_file() else f"make room on the disk of {folder}",
    )


def _judge_job(name: str, status: JobStatus, duration: float) -> Check:
    if status.state is JobState.FAILED and status.exit_code == 42:
        return Check(
            name=name,
            ok=True,
            detail=f"a supervisor came up and ran it, its exit code came back, {duration:.2f} s",
        )
    return Check(
        name=name,
        ok=False,
        detail=f"it was to exit with 42 and {status.message}",
        fix=f"run {sys.executable} -c 'import sys; sys.exit(42)'; echo $?",
    )


def _judge_limits(warnings: Mapping[str, Sequence[str]]) -> Iterator[Check]:
    # missing limits are no fault: jobs run without them
    if not any(warnings.values()):
        yield Check(name="limits", ok=True, detail="memory and CPU limits of jobs are enforced")
    for capability, warning in ((name, word) for name, words in warnings.items() for word in words):
        yield Check(
            name="limits",
            ok=True,
            missing=(capability,),
            detail=f"{warning}; jobs run all the same",
            fix="have control groups delegated: systemd-run --user --scope -p Delegate=yes COMMAND",
        )


def _check_devices(devices: HostDevices, kind: str) -> Check:
    try:
        found = devices.find(kind)
    except ResourceError as error:
        fix = f"run the probe by hand and mend what it says, or uninstall the provider of {kind!r}"
        return Check(name=f"{kind} devices", ok=False, detail=str(error), fix=fix)
    names = ", ".join(device.name or device.id for device in found)
    return Check(name=f"{kind} devices", ok=True, detail=names or "none on this host")
