"""What the words of ``fiber mpirun`` mean: its own options, mpirun's options, the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fiber._base import values
from fiber.exceptions import FiberError

__all__ = ["Words", "maps_ranks", "read_mpirun", "sizes", "split"]

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
