"""The MPI implementations whose ``mpirun`` we can lead, told by what it says of itself."""

from __future__ import annotations

import enum
import re

from fiber._base import values
from fiber.exceptions import FiberError

__all__ = ["Family", "Stack", "recognise"]


class Family(enum.Enum):
    """Who wrote it; settings and hostfiles differ by it."""

    #: Open MPI up to 4, which starts its daemons itself
    OPEN_MPI = "Open MPI"
    #: Open MPI 5 and later, whose daemons are PRRTE's and whose settings have other names
    OPEN_MPI_PRRTE = "Open MPI with PRRTE"
    #: MPICH, and what is built with its Hydra
    MPICH = "MPICH"
    #: Intel MPI, with a Hydra of its own
    INTEL = "Intel MPI"


@values.frozen
class Stack:
    """An installed MPI implementation."""

    #: who wrote it
    family: Family
    #: its version as it says it, for people
    version: str

    @property
    def is_open_mpi(self) -> bool:
        """True for any Open MPI."""
        return self.family in (Family.OPEN_MPI, Family.OPEN_MPI_PRRTE)

    def __str__(self) -> str:
        name = "Open MPI" if self.is_open_mpi else self.family.value
        return f"{name} {self.version}"


_OPEN_MPI = re.compile(r"\((?:Open MPI|OpenRTE|PRRTE|prte)\)\s*v?(?P<version>(?P<major>\d+)[\w.]*)")
_PRRTE = re.compile(r"\bprter?(?:un)?\b.*?\b(?P<version>\d+\.[\w.]*)", re.IGNORECASE)
_INTEL = re.compile(r"Intel\(R\) MPI Library.*?Version\s+(?P<version>[\d.]+)", re.DOTALL)
_HYDRA = re.compile(r"HYDRA build details.*?Version:\s*(?P<version>\S+)", re.DOTALL)
#: the first major version of Open MPI whose daemons are PRRTE's
_PRRTE_SINCE = 5


def recognise(program: str, said: str) -> Stack:
    """Which implementation a ``mpirun`` belongs to.

    Args:
        program: its path, for the message.
        said: what it printed when it was asked for its version.

    Raises:
        FiberError: none that we know.
    """
    if found := _INTEL.search(said):
        return Stack(Family.INTEL, found["version"])
    if found := _HYDRA.search(said):
        return Stack(Family.MPICH, found["version"])
    if found := _OPEN_MPI.search(said):
        new = "PRRTE" in found[0].upper() or int(found["major"]) >= _PRRTE_SINCE
        return Stack(Family.OPEN_MPI_PRRTE if new else Family.OPEN_MPI, found["version"])
    if found := _PRRTE.search(said):
        return Stack(Family.OPEN_MPI_PRRTE, found["version"])
    first = next(iter(said.strip().splitlines()), "nothing")
    msg = (
        f"{program} is no mpirun that we know, it says {first!r}; name one of Open MPI, MPICH or "
        "Intel MPI with --mpirun"
    )
    raise FiberError(msg)
