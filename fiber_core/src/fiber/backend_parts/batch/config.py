"""Settings that all batch systems have; imports nothing that listing backends would wait for."""

from __future__ import annotations

from pathlib import Path

from fiber._base import values

__all__ = ["BatchConfig"]


@values.frozen(kw_only=True)
class BatchConfig:
    """Settings that all batch systems have; a plugin subclasses it."""

    #: folder for jobs' files, on a file system that the nodes see under the same path
    folder: Path = values.field(
        default=Path("~/.fiber"),
        metadata={"help": "folder for jobs' files, which all nodes see", "passed_on": False},
    )
    #: the Python of the nodes; this program's own where it is not set
    python: str | None = values.field(
        default=None, metadata={"help": "the Python of the nodes", "passed_on": False}
    )
    #: lines of shell before each job, such as ``module load cuda``; they run in a login shell
    prologue: str = values.field(
        default="", metadata={"help": "lines of shell before each job", "passed_on": False}
    )
    #: the address at which nodes reach this machine, where it is not its first one
    address: str | None = values.field(
        default=None,
        metadata={"help": "address at which nodes reach this machine", "passed_on": False},
    )
