"""Settings of the Slurm backend."""

from __future__ import annotations

from typing import Literal

from fiber._base import values
from fiber.backend_parts.batch.config import BatchConfig

__all__ = ["SlurmConfig"]


def _option(name: str, words: str) -> dict[str, object]:
    return {"option": f"--{name}", "help": words}


@values.frozen(kw_only=True)
class SlurmConfig(BatchConfig):
    """Settings by ``FIBER_SLURM_<KEY>`` or the section ``[slurm]``."""

    #: what jobs are: ``sbatch``, batch jobs; ``srun``, steps of the allocation that this program is in; or
    #: ``auto``, steps where it is in one that Fiber did not make itself, and batch jobs elsewhere
    by: Literal["auto", "sbatch", "srun"] = values.field(
        default="auto",
        metadata=_option("by", "sbatch: batch jobs; srun: steps of this allocation; auto"),
    )
    #: the partition of jobs; the cluster's default one where it is not set
    partition: str | None = values.field(
        default=None, metadata=_option("partition", "partition of jobs")
    )
    #: the account that jobs are charged to
    account: str | None = values.field(
        default=None, metadata=_option("account", "account that jobs are charged to")
    )
    #: the quality of service
    qos: str | None = values.field(default=None, metadata=_option("qos", "quality of service"))
    #: the most time that a job may take, as Slurm has it: ``2:00:00``, ``1-12``
    time: str | None = values.field(
        default=None, metadata=_option("time", "time limit of a job, such as 2:00:00")
    )
    #: features that nodes must have
    constraint: str | None = values.field(
        default=None, metadata=_option("constraint", "features that nodes must have")
    )
    #: what jobs of one device of a kind ask for, where that is not the kind's own name: ``gpu=gpu:a100``
    gres: tuple[str, ...] = values.field(
        default=(), metadata={"help": "generic resources by kind: gpu=gpu:a100"}
    )
    #: the cluster's slurm.conf, where Slurm's commands are to use another one than they would find
    conf: str | None = values.field(default=None, metadata={"help": "slurm.conf of the cluster"})
    #: more options of sbatch, quoted as in a shell: ``--exclusive --mail-type=FAIL``
    options: str = values.field(default="", metadata={"help": "more options of sbatch"})
