"""What the words of ``fiber mpirun`` mean: its own options, mpirun's options, the program.

What one run of ``mpirun`` is to be.

Members of several kinds, as ``--group`` tells them: how many, and what each of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fiber._base import values
from fiber._config.convert import parse_cpu, parse_memory
from fiber._ring.mpi.crew import Need
from fiber._ring.mpi.hosts import Host, expected_hosts
from fiber.exceptions import FiberError
from fiber.model import ResourceRequest

__all__ = [
    "LAUNCHER",
    "MemberGroup",
    "Plan",
    "Words",
    "arranged",
    "joined",
    "maps_ranks",
    "read_group",
    "read_mpirun",
    "sizes",
    "split",
]

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


_FORM = "N or N:slots=K,cpu=C,memory=MB,gpu=G"


@values.frozen(kw_only=True)
class MemberGroup:
    """Members that are alike; None means what all members have."""

    #: how many
    members: int = values.field(validator=values.ge(1))
    #: ranks that each has room for
    slots: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    cpu: float | None = values.field(default=None, validator=values.optional(values.gt(0)))
    memory: int | None = None
    gpu: int | None = values.field(default=None, validator=values.optional(values.ge(1)))


_READ: dict[str, Callable[[str], Any]] = {
    "slots": int,
    "cpu": parse_cpu,
    "memory": parse_memory,
    "gpu": int,
}


def read_group(word: str) -> MemberGroup:
    """Read a group, such as ``2:slots=4,gpu=1``.

    Raises:
        ValueError: it is none; the text tells the form.
    """
    number, _, rest = word.partition(":")
    found: dict[str, Any] = {}
    try:
        for part in filter(None, rest.split(",")):
            name, _, value = part.partition("=")
            found[name] = _READ[name](value)
        return MemberGroup(members=int(number), **found)
    except (ValueError, KeyError) as error:
        msg = f"{word!r} is no group of members, which is {_FORM}"
        raise ValueError(msg) from error


def arranged(
    groups: Sequence[MemberGroup], slots: int, common: Need
) -> tuple[tuple[Host, ...], dict[str, Need]]:
    """The members of groups in their order, and what each of them needs.

    Args:
        groups: at least one.
        slots: of members whose group says nothing.
        common: what members need whose group says nothing.
    """
    hosts: list[Host] = []
    needs: dict[str, Need] = {}
    for group in groups:
        devices = {} if group.gpu is None else {"gpu": group.gpu}
        own = ResourceRequest(cpu=group.cpu, memory=group.memory, devices=devices)
        need = joined(Need(resources=own), common)
        for _ in range(group.members):
            name = f"member-{len(hosts)}"
            hosts.append(Host(name, slots if group.slots is None else group.slots))
            needs[name] = need
    return tuple(hosts), needs


def joined(first: Need, then: Need) -> Need:
    """What one need says, and what the other says of everything else."""
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


#: options of the several kinds of mpirun that say where ranks go; then any place with room is right
_MAPPING = (
    *("map-by", "rank-by", "rankfile", "rf", "bynode", "bycore", "byslot", "npernode", "N"),
    *("pernode", "npersocket", "ppr", "host", "H", "hosts", "hostlist", "hostfile", "machinefile"),
    *("f", "ppn", "perhost", "rr", "rmaps", "rank-by", "oversubscribe", "nooversubscribe"),
)


#: programs that start ranks
_STARTERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
#: their options that have no value; one that is not known has one
_BARE = frozenset(
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
#: and those that have two
_TWICE = frozenset({"mca", "gmca", "prtemca", "pmixmca", "genv", "env"})
_COUNTS = frozenset({"n", "np", "c"})


@values.frozen
class Words:
    """A command line, taken apart."""

    #: what is ours
    ours: tuple[str, ...]
    #: what is mpirun's, before the program
    options: tuple[str, ...]
    #: the program and its arguments
    program: tuple[str, ...]


def split(words: Sequence[str], known: Mapping[str, bool]) -> Words:
    """Take a command line apart.

    Args:
        words: all of it.
        known: our options by name; True for those that have a value.

    Raises:
        FiberError: mpirun's options are given, and no -- tells where they end; or no program is.
    """
    rest = list(words)
    ours: list[str] = []
    options: list[str] = []
    while rest and rest[0] != "--":
        word = rest[0]
        name, equals, _ = word.partition("=")
        if name in known and (not equals or name.startswith("--")):
            taken = 2 if known[name] and not equals else 1
            ours += rest[:taken]
            del rest[:taken]
        elif word.startswith("-") or options:
            options.append(rest.pop(0))
        else:
            break
    if rest[:1] == ["--"]:
        return Words(tuple(ours), tuple(options), tuple(rest[1:]))
    if options:
        msg = (
            f"{options[0]} is an option of mpirun's: write -- between its options and the program, "
            "as in fiber mpirun -np 4 --bind-to none -- ./program"
        )
        raise FiberError(msg)
    return Words(tuple(ours), (), tuple(rest))


def read_mpirun(command: Sequence[str]) -> tuple[str, int | None, Words] | None:
    """A whole command line of mpirun's, taken apart; None where it is no mpirun's.

    Returns:
        the mpirun, the number of ranks where one is said, its other options and the program.
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
        taken = 1 if name in _BARE or "=" in rest[0] else 3 if name in _TWICE else 2
        options += rest[:taken]
        del rest[:taken]
    return command[0], count, Words((), tuple(options), tuple(rest))


def maps_ranks(options: Collection[str]) -> bool:
    """True where options for mpirun say where ranks are to be."""
    return any(
        option.startswith("-") and option.lstrip("-").partition("=")[0] in _MAPPING
        for option in options
    )


def sizes(count: int | None, slots: int, members: int | None) -> tuple[int, int]:
    """How many ranks and members there are to be, from what was said of them.

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
