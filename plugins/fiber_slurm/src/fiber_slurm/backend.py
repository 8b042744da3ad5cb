"""The Slurm backend; see the package's docstring."""

from __future__ import annotations

from fiber.backend_parts.batch.backend import BatchBackend
from fiber.backend_parts.batch.poller import BatchTiming
from fiber.model import BackendContext
from fiber_slurm.allocation import StepTiming
from fiber_slurm.config import SlurmConfig
from fiber_slurm.system import SlurmSystem

__all__ = ["SlurmBackend"]


class SlurmBackend(BatchBackend):
    """Backend that runs jobs as batch jobs of Slurm, or as steps of an allocation.

    Args:
        context: settings and run; Slurm is asked nothing before the first use.
    """

    name = "slurm"

    def __init__(self, context: BackendContext) -> None:
        config = context.config if isinstance(context.config, SlurmConfig) else SlurmConfig()
        timing = BatchTiming.at(context.timing.scale)
        system = SlurmSystem(config, timing.command, StepTiming.at(context.timing.scale))
        super().__init__(context, system, config)
