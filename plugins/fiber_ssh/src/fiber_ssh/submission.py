"""A job of ours on its way to a host, and what the host's agent is told of it."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs

from fiber.model import Device, Job, JobSpec
from fiber_ssh.address import HERE, NOWHERE
from fiber_ssh.hosts import Host
from fiber_ssh.reaching import Way
from fiber_ssh.shell import About

__all__ = ["Order", "agent_order"]

#: seconds that a worker has which is asked to go: nobody kills it afterwards, unless Fiber itself does
_GRACE = 30


@attrs.define(eq=False)
class Order:
    """A job that was submitted here."""

    #: the job
    job: Job
    #: what was asked for
    spec: JobSpec
    #: name of the host that it was given to, once one was
    host: str | None = None
    #: devices that are its own there
    devices: tuple[Device, ...] = ()
    #: True once the host's agent said that it has it
    confirmed: bool = False
    #: port of the host's loopback where streams into it come in, once the agent told it
    landing: int | None = None


def agent_order(
    order: Order,
    host: Host,
    about: About,
    *,
    way: Way,
    device_environ: Mapping[str, str],
    work: str | None,
) -> dict[str, Any]:
    """What the agent is told; the private part of it goes nowhere else.

    Args:
        order: the job.
        host: where it goes.
        about: what is known of that.
        way: how the job reaches its parent.
        device_environ: environment that makes it see its devices alone.
        work: a folder of the host's that holds the program's files, if there is one.
    """
    spec = order.spec
    argv = list(spec.argv)
    if spec.entry is not None:
        # a Python that has fiber: the host's own
        argv[0] = about.executable
    env = {**host.env, **spec.env, **device_environ}
    here = NOWHERE if way.is_apart else about.address
    if here is not None:
        env[HERE] = here
    if way.dial is not None:
        env["FIBER_REACH"] = way.dial
    if spec.entry is not None:
        env["FIBER_GRACE"] = str(_GRACE)
    folder = work or spec.cwd
    private = None if spec.private is None else base64.b64encode(spec.private).decode()
    return {
        "id": order.job.id,
        "run": order.job.run_id,
        "name": order.job.name,
        "argv": argv,
        "submitted": order.job.submitted,
        "detached": spec.detached,
        "env": env,
        "unset": sorted(spec.unset_env),
        "directory": host.directory,
        "cwd": None if folder is None else os.fspath(folder),
        "landing": way.is_streamed,
        "path": str(PurePosixPath(about.executable).parent),
        "private": private,
    }
