"""Jobs of this program on their way to hosts, the request that submits one, and an agent's records of them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs

from fiber._agent.supervisor.jobs import combine
from fiber._agent.supervisor.journal import JournaledJob
from fiber.model import Device, Job, JobSpec, JobStatus
from fiber_ssh.address import ADDRESS_VARIABLE, UNREACHABLE
from fiber_ssh.exec_channel import HostInfo
from fiber_ssh.hosts import Host
from fiber_ssh.routes import Route


@attrs.define(eq=False)
class Submission:
    """A job that this program submitted."""

    #: the job
    job: Job
    #: its specification
    spec: JobSpec
    #: name of its host; None while it waits for one
    host: str | None = None
    #: devices of the host that are allocated to it
    devices: tuple[Device, ...] = ()
    #: True once the host's agent has accepted it
    confirmed: bool = False
    #: port of the host's loopback for streams into it; None before the agent has reported it
    stream_port: int | None = None


def submit_fields(
    submission: Submission,
    host: Host,
    info: HostInfo,
    *,
    route: Route,
    device_environ: Mapping[str, str],
    folder: str | None,
    grace: float,
) -> dict[str, Any]:
    """Fields of the request that submits a job to its agent.

    It is the only place that the spec's private bytes go to.

    Args:
        submission: the job.
        host: its host.
        info: what the host has reported of itself.
        route: the route to its parent.
        device_environ: environment variables that restrict it to its devices.
        folder: folder on the host with the files that were sent; None for none.
        grace: seconds for a worker to end after SIGTERM.
    """
    spec = submission.spec
    argv = list(spec.argv)
    if spec.entry is not None:
        # the host's Python that has fiber
        argv[0] = info.executable
    env = {**host.env, **spec.env, **device_environ}
    assigned = UNREACHABLE if route.is_isolated else info.address
    if assigned is not None:
        env[ADDRESS_VARIABLE] = assigned
    if route.dial_address is not None:
        env["FIBER_REACH"] = route.dial_address
    if spec.entry is not None:
        env["FIBER_GRACE"] = f"{grace:g}"
    cwd = folder or spec.cwd
    private = None if spec.private is None else base64.b64encode(spec.private).decode()
    return {
        "id": submission.job.id,
        "run": submission.job.run_id,
        "name": submission.job.name,
        "argv": argv,
        "submitted": submission.job.submitted,
        "detached": spec.detached,
        "env": env,
        "unset": sorted(spec.unset_env),
        "directory": host.directory,
        "cwd": None if cwd is None else os.fspath(cwd),
        "streams": route.uses_streams,
        "path": str(PurePosixPath(info.executable).parent),
        "private": private,
    }


def read_record(record: Mapping[str, Any], backend: str, host: str) -> tuple[Job, JobStatus]:
    """The job of a record, and how it stands.

    Raises:
        ValueError: the record makes no sense.
    """
    job = JournaledJob.from_events(record["events"])
    return job.job(backend, host=host), combine(job.processes, host=host)
