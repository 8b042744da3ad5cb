"""The backend in a job's own container, which was given no engine: children run beside their parent."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import attrs

from fiber.exceptions import CapabilityError
from fiber.model import (
    BackendContext,
    Check,
    Job,
    JobSpec,
    Reach,
    ReachKind,
    ResourceRequest,
)
from fiber_local.backend import LocalBackend

__all__ = ["InsideBackend"]


class InsideBackend(LocalBackend):
    """Runs jobs as processes of this container, under the container's limits.

    Args:
        context: settings and run.
    """

    name = "docker"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(attrs.evolve(context, config=None))

    def submit(self, spec: JobSpec) -> Job:
        """Start a job in this container; it has what its parent has, its image above all."""
        if any(spec.resources.devices.values()):
            what = (
                f"{spec.name}, a child of a container that has no engine, with devices of its own"
            )
            raise CapabilityError(self.name, "devices", what)
        python = sys.executable if spec.entry is not None else spec.argv[0]
        here = attrs.evolve(
            spec,
            argv=(python, *spec.argv[1:]),
            entry=None,
            image=None,
            # the container's own limits hold for all that run in it
            resources=ResourceRequest(),
        )
        return super().submit(here)

    def reach(self, job: Job) -> Reach:
        """Parent and child share a container."""
        return Reach(ReachKind.DIRECT, "both are processes of one container")

    def check(self) -> Sequence[Check]:
        """Say what this is."""
        words = "this container has no engine, so processes that are started here run here"
        fix = "set FIBER_DOCKER_SHARE_ENGINE=all for the program, so that they get their own"
        return [Check(name="engine", ok=True, detail=words, fix=fix)]
