"""Command line of ``fiber mpirun`` (its options, mpirun's options, the program), and a run's spec.

:class:`RunSpec` is what a run needs to know, made from the command line or from a manifest. Pure:
nothing here starts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fiber._base import values
from fiber._config.convert import parse_cpu, parse_memory
from fiber._ring.mpi.hosts import MpiHost, expected_hosts
from fiber.exceptions import FiberError
from fiber.model import ResourceRequest, Volume

__all__ = [
    "LAUNCHER",
    "CommandLine",
    "MemberGroup",
    "Need",
    "RunSpec",
    "expand_groups",
    "maps_ranks",
    "merge_needs",
    "parse_group",
    "parse_mpirun",
    "rank_and_member_counts",
    "split_command_line",
]

#: name of the member agent that runs mpirun
LAUNCHER = "launcher"


@values.frozen(kw_only=True)
class Need:
    """What a job asks of the platform; None and empty mean what the settings say."""

    resources: ResourceRequest = values.field(factory=ResourceRequest)
    image: str | None = None
    volumes: tuple[Volume, ...] = ()


@values.frozen(kw_only=True)
class RunSpec:
    """Specification of a run: the program, its ranks, and the members' resources."""

    #: program and arguments of every rank; of the launcher where ``count`` is 0
    program: tuple[str, ...]
    #: number of ranks; 0 for a launcher of the user's own, which calls mpirun itself
    count: int
    #: members, in the order in which ranks fill them
    hosts: tuple[MpiHost, ...]
    #: the user's mpirun or mpiexec
    mpirun: str = "mpirun"
    #: its options
    options: tuple[str, ...] = ()
    #: True where ranks fill members one after another, False where options say otherwise
    strict: bool = True
    #: resources of a member, and of the launcher
    member: Need = values.field(factory=Need)
    launcher: Need = values.field(factory=Need)
    #: resources of members that differ, by name
    member_needs: Mapping[str, Need] = values.field(factory=dict)
    #: True where the first member shares the launcher's job and resources
    launcher_is_member: bool = False
    #: seconds within which all members must be up, and then all ranks
    start_timeout: float = 60.0
    #: additional environment of all programs
    env: Mapping[str, str] = values.field(factory=dict)
    #: seconds after which the run has failed
    deadline: float | None = None

    def __attrs_post_init__(self) -> None:
        # too few slots are an error before anything is started
        expected_hosts(self.count, self.hosts)

    def jobs(self) -> dict[tuple[str, ...], Need]:
        """Return the resources of each job, by the names of its members."""
        names = [host.name for host in self.hosts]
        shared = 1 if self.launcher_is_member else 0
        found = {(LAUNCHER, *names[:shared]): self.launcher}
        for name in names[shared:]:
            found[(name,)] = self.member_needs.get(name, self.member)
        return found


_SYNTAX = "N or N:slots=K,cpu=C,memory=MB,gpu=G"


@values.frozen(kw_only=True)
class MemberGroup:
    """Members with equal resources; None stands for the defaults of all members."""

    #: number of members
    members: int = values.field(validator=values.ge(1))
    #: most ranks of each
    slots: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    cpu: float | None = values.field(default=None, validator=values.optional(values.gt(0)))
    memory: int | None = None
    gpu: int | None = values.field(default=None, validator=values.optional(values.ge(1)))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "slots": int,
    "cpu": parse_cpu,
    "memory": parse_memory,
    "gpu": int,
}


def parse_group(argument: str) -> MemberGroup:
    """Parse a group, such as ``2:slots=4,gpu=1``.

    Raises:
        ValueError: invalid syntax; the text has the valid one.
    """
    number, _, rest = argument.partition(":")
    found: dict[str, Any] = {}
    try:
        for part in filter(None, rest.split(",")):
            name, _, value = part.partition("=")
            found[name] = _PARSERS[name](value)
        return MemberGroup(members=int(number), **found)
    except (ValueError, KeyError) as error:
        msg = f"{argument!r} is no group of members, which is {_SYNTAX}"
        raise ValueError(msg) from error


def expand_groups(
    groups: Sequence[MemberGroup], slots: int, common: Need
) -> tuple[tuple[MpiHost, ...], dict[str, Need]]:
    """Return the members of all groups in order, and the resources of each, by name.

    Args:
        groups: one or more groups.
        slots: slots of members whose group has no number of its own.
        common: resources of members whose group has none of its own.
    """
    hosts: list[MpiHost] = []
    needs: dict[str, Need] = {}
    for group in groups:
        devices = {} if group.gpu is None else {"gpu": group.gpu}
        resources = ResourceRequest(cpu=group.cpu, memory=group.memory, devices=devices)
        need = merge_needs(Need(resources=resources), common)
        for _ in range(group.members):
            name = f"member-{len(hosts)}"
            hosts.append(MpiHost(name, slots if group.slots is None else group.slots))
            needs[name] = need
    return tuple(hosts), needs


def merge_needs(first: Need, then: Need) -> Need:
    """Return ``first`` with the values of ``then`` where it has none."""
    upper, lower = first.resources, then.resources
    return Need(
        resources=ResourceRequest(
            cpu=lower.cpu if upper.cpu is None else upper.cpu,
            memory=lower.memory if upper.memory is None else upper.memory,
            devices={**lower.devices, **upper.devices},
        ),
        image=then.image if first.image is None else first.image,
        volumes=first.volumes or then.volumes,
    )


#: options of the several kinds of mpirun that map ranks; with one, any host with room is right
_MAPPING = (
    *("map-by", "rank-by", "rankfile", "rf", "bynode", "bycore", "byslot", "npernode", "N"),
    *("pernode", "npersocket", "ppr", "host", "H", "hosts", "hostlist", "hostfile", "machinefile"),
    *("f", "ppn", "perhost", "rr", "rmaps", "rank-by", "oversubscribe", "nooversubscribe"),
)


#: names of programs that start ranks
_STARTERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
#: their options without a value; unknown ones are taken to have one
_FLAGS = frozenset(
    {
        *("allow-run-as-root", "bynode", "byslot", "bycore", "display-map", "display-allocation"),
        *("merge-stderr-to-stdout", "nooversubscribe", "oversubscribe", "pernode", "q", "quiet"),
        *(
            "report-bindings",
            "tag-output",
            "v",
            "V",
            "verbose",
            "l",
            "prepend-rank",
            "rr",
            "genvall",
        ),
        *("genvnone", "nolocal", "do-not-launch", "timestamp-output", "usize"),
    }
)
#: their options with two values
_TWO_VALUES = frozenset({"mca", "gmca", "prtemca", "pmixmca", "genv", "env"})
_COUNTS = frozenset({"n", "np", "c"})


@values.frozen
class CommandLine:
    """A command line, split in three."""

    #: options of ``fiber mpirun``
    fiber_options: tuple[str, ...]
    #: options of mpirun, before the program
    options: tuple[str, ...]
    #: the program and its arguments
    program: tuple[str, ...]


def split_command_line(argv: Sequence[str], known: Mapping[str, bool]) -> CommandLine:
    """Split a command line into Fiber's options, mpirun's options and the program.

    Args:
        argv: the arguments.
        known: Fiber's options by name; True for those that have a value.

    Raises:
        FiberError: there are options of mpirun, and no ``--`` after them.
    """
    rest = list(argv)
    fiber_options: list[str] = []
    options: list[str] = []
    while rest and rest[0] != "--":
        argument = rest[0]
        name, equals, _ = argument.partition("=")
        if name in known and (not equals or name.startswith("--")):
            taken = 2 if known[name] and not equals else 1
            fiber_options += rest[:taken]
            del rest[:taken]
        elif argument.startswith("-") or options:
            options.append(rest.pop(0))
        else:
            break
    if rest[:1] == ["--"]:
        return CommandLine(tuple(fiber_options), tuple(options), tuple(rest[1:]))
    if options:
        msg = (
            f"{options[0]} is an option of mpirun's: write -- between its options and the program, "
            "as in fiber mpirun -np 4 --bind-to none -- ./program"
        )
        raise FiberError(msg)
    return CommandLine(tuple(fiber_options), (), tuple(rest))


def parse_mpirun(command: Sequence[str]) -> tuple[str, int | None, CommandLine] | None:
    """Parse a command line that begins with an mpirun.

    Returns:
        its path, the number of ranks if given, and its other options with the program; None for
        other commands.
    """
    if not command or command[0].rpartition("/")[2] not in _STARTERS:
        return None
    rest = list(command[1:])
    count: int | None = None
    options: list[str] = []
    while rest and rest[0].startswith("-"):
        name = rest[0].lstrip("-").partition("=")[0]
        if name in _COUNTS and len(rest) > 1 and rest[1].isdecimal():
            count = int(rest[1])
            del rest[:2]
            continue
        taken = 1 if name in _FLAGS or "=" in rest[0] else 3 if name in _TWO_VALUES else 2
        options += rest[:taken]
        del rest[:taken]
    return command[0], count, CommandLine((), tuple(options), tuple(rest))


def maps_ranks(options: Collection[str]) -> bool:
    """Return True if options of mpirun map ranks to hosts."""
    return any(
        option.startswith("-") and option.lstrip("-").partition("=")[0] in _MAPPING
        for option in options
    )


def rank_and_member_counts(count: int | None, slots: int, members: int | None) -> tuple[int, int]:
    """Return the numbers of ranks and members, from the options that were given.

    Raises:
        FiberError: the ranks do not fit on the members.
    """
    if count is None:
        members = members or 1
        return members * slots, members
    needed = -(-count // slots)
    if members is not None and members < needed:
        msg = (
            f"{count} ranks do not fit on {members} members of {slots} slots each; ask for "
            f"--members {needed}, or for more --slots"
        )
        raise FiberError(msg)
    return count, needed if members is None else members
