"""Settings that all batch systems have; imports nothing that listing backends would wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fiber._base import values

__all__ = ["BatchConfig"]


@values.frozen(kw_only=True)
class BatchConfig:
    """Settings that all batch systems have; a plugin subclasses it.

    Programs in jobs, as of ``fiber run``, get all of them but how this machine is reached.
    """

    #: folder for jobs' files, on a file system that the nodes see under the same path
    folder: Path = values.field(
        default=Path("~/.fiber"),
        metadata={"help": "folder for jobs' files, which all nodes see"},
    )
    #: the Python of the nodes; this program's own where it is not set
    python: str | None = values.field(default=None, metadata={"help": "the Python of the nodes"})
    #: lines of shell before each job, such as ``module load cuda``; they run in a login shell
    prologue: str = values.field(default="", metadata={"help": "lines of shell before each job"})
    #: the address at which nodes reach this machine, where it is not its first one
    address: str | None = values.field(
        default=None,
        metadata={"help": "address at which nodes reach this machine", "passed_on": False},
    )
    #: how jobs reach this program: ``direct``, they dial; or ``streams``, which this program opens
    #: into them, where nodes cannot dial and the system runs programs beside jobs
    reach: Literal["direct", "streams"] = values.field(
        default="direct",
        metadata={"help": "direct, or streams where nodes cannot dial", "passed_on": False},
    )
