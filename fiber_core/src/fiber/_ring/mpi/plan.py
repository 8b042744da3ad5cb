"""What one run of ``mpirun`` is to be."""

from __future__ import annotations

from collections.abc import Mapping

from fiber._base import values
from fiber._ring.mpi.crew import Need
from fiber._ring.mpi.hosts import Host, expected_hosts

__all__ = ["LAUNCHER", "Plan"]

#: name of the station that runs mpirun
LAUNCHER = "launcher"


@values.frozen(kw_only=True)
class Plan:
    """What is to be run, and on what."""

    #: program and arguments of every rank; of the launcher where ``count`` is 0
    program: tuple[str, ...]
    #: how many ranks; 0 for a launcher of the user's own, which calls mpirun itself
    count: int
    #: members, in the order in which ranks fill them
    hosts: tuple[Host, ...]
    #: the user's mpirun or mpiexec
    mpirun: str = "mpirun"
    #: options for it
    options: tuple[str, ...] = ()
    #: True where ranks fill members one after another, False where options say otherwise
    strict: bool = True
    #: what each member needs, and the launcher
    member: Need = values.field(factory=Need)
    launcher: Need = values.field(factory=Need)
    #: what those members need that are not as the others, by name
    unlike: Mapping[str, Need] = values.field(factory=dict)
    #: True where the first member is in the launcher's job, whose need counts then
    launcher_is_member: bool = False
    #: seconds until members must be there, and ranks
    start_timeout: float = 60.0
    #: more environment for all programs
    env: Mapping[str, str] = values.field(factory=dict)
    #: seconds after which it has failed
    deadline: float | None = None
    #: what stations show each other
    token: str = values.field(repr=False)

    def __attrs_post_init__(self) -> None:
        # too few slots are told before anything is started
        expected_hosts(self.count, self.hosts)

    def jobs(self) -> dict[tuple[str, ...], Need]:
        """The jobs of the run: names of the stations in each, and what it needs."""
        names = [host.name for host in self.hosts]
        shared = 1 if self.launcher_is_member else 0
        found = {(LAUNCHER, *names[:shared]): self.launcher}
        for name in names[shared:]:
            found[(name,)] = self.unlike.get(name, self.member)
        return found
