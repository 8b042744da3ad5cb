"""Specifications of all hooks that Fiber calls, and the marker for implementations.

Hooks collect what plugins offer and announce events; methods of the chosen object do the work.
Implementations may accept fewer arguments than a specification names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import click

    from fiber.abc import Backend, ResourceProvider
    from fiber.model import (
        BackendClaim,
        BackendInfo,
        Interface,
        Job,
        JobSpec,
        JobStatus,
        ListenAddress,
        Peers,
        Reason,
    )

__all__ = [
    "PROJECT",
    "fiber_backends",
    "fiber_commands",
    "fiber_detect_backend",
    "fiber_job_changed",
    "fiber_listen_address",
    "fiber_resource_providers",
    "fiber_ring_frameworks",
    "fiber_submit_job",
    "fiber_worker_lost",
    "hookimpl",
    "hookspec",
]

#: the pluggy project name and the entry-point group
PROJECT = "fiber"

hookspec = pluggy.HookspecMarker(PROJECT)
#: marks a function of a plugin as the implementation of the hook of its name
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def fiber_backends() -> Iterable[BackendInfo]:  # type: ignore[empty-body]
    """Fires when backends are listed or looked up; return those that this plugin offers.

    Making the values must not import an SDK. All answers are collected.
    """


@hookspec
def fiber_detect_backend(environ: Mapping[str, str]) -> BackendClaim | None:
    """Fires when no backend was chosen; claim this process where it runs on your platform.

    Two claims are an error that quotes both.
    """


@hookspec(firstresult=True)
def fiber_submit_job(backend: Backend, spec: JobSpec) -> Job | None:
    """Fires when a job is submitted; the core's own ``trylast`` answer is ``backend.submit(spec)``.

    Wrap it to label, audit or dry-run. Where a plugin has this hook, jobs come one by one, also on
    backends that take several in one call (:meth:`fiber.abc.Backend.submit_many`).
    """


@hookspec
def fiber_job_changed(job: Job, previous: JobStatus | None, current: JobStatus) -> None:
    """Fires after each change of a job's status. Errors are logged, never propagated."""


@hookspec
def fiber_worker_lost(worker: str, cause: Reason, requeued: int, abandoned: int) -> None:
    """Fires after a pool lost a worker, with the number of tasks that run again or were given up."""


@hookspec
def fiber_resource_providers() -> Iterable[ResourceProvider]:  # type: ignore[empty-body]
    """Fires when device kinds are looked up; return this plugin's providers, one a kind."""


@hookspec(firstresult=True)
def fiber_listen_address(
    backend: str, peers: Peers, interfaces: Sequence[Interface]
) -> ListenAddress | None:
    """Fires before a process listens; answer where. Must be a pure function of its arguments.

    What has to be asked of the platform is in ``peers.facts``, see ``BackendInfo.facts``.
    """


@hookspec
def fiber_commands() -> Iterable[click.Command]:  # type: ignore[empty-body]
    """Fires when the ``fiber`` command is built; return sub-commands whose bodies import lazily."""


@hookspec
def fiber_ring_frameworks() -> Iterable[Any]:  # type: ignore[empty-body]
    """Fires when a ring is made for a framework; return those that this plugin prepares rings for.

    The values are instances of :class:`fiber.experimental.RingFramework`. Making them must not
    import the framework. All answers are collected.
    """
