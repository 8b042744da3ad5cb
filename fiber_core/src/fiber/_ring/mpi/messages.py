"""Messages between the controller of a run and its member agents, besides those of all gangs.

Those of :mod:`fiber._ring.protocol` begin a run, as they do a ring: a greeting and a probe of each
member; and ``Leave`` ends it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fiber._base import values

# -- from a member agent


@values.frozen
class HostnameSet:
    """Answer to :class:`SetHostname`."""

    done: bool


@values.frozen
class LauncherReady:
    """The launcher listens at its command socket and has written its files."""

    #: folder of the files on its host
    folder: str


@values.frozen
class CommandRequested:
    """An mpirun agent on the launcher requests a command on a member."""

    call: int
    host: str
    command: str


@values.frozen
class Output:
    """Output of a command."""

    call: int
    #: 1 for standard output, 2 for errors
    stream: int
    data: bytes


@values.frozen
class Ended:
    """A command has ended; follows all of its output."""

    call: int
    #: exit code, or minus the signal's number
    code: int


@values.frozen
class Refused:
    """A command cannot be run."""

    call: int
    why: str


@values.frozen
class RankUp:
    """A rank has started and waits for its release."""

    rank: int
    pid: int


@values.frozen
class RankEnded:
    """A rank has ended, with an exit code as shells report it."""

    rank: int
    code: int


# -- to a member agent


@values.frozen
class SetHostname:
    """Request to run programs with the member's name as their host name."""


@values.frozen
class BecomeLauncher:
    """Request to be the launcher: open a command socket and write files."""

    #: contents by file name; ``.sh`` files are made executable
    files: Mapping[str, str]


@values.frozen(kw_only=True)
class Run:
    """Request to run a command; :class:`Output` and :class:`Ended`, or :class:`Refused`, follow."""

    call: int
    argv: tuple[str, ...]
    #: variables on top of the member agent's own
    env: Mapping[str, str] = values.field(factory=dict)
    #: names in ``env`` that the member agent's own environment overrides
    overridable: frozenset[str] = frozenset()


@values.frozen
class Input:
    """Data for a command's standard input; empty data closes it."""

    call: int
    data: bytes


@values.frozen
class Signal:
    """A signal for all processes of a command."""

    call: int
    number: int


@values.frozen
class ReleaseRanks:
    """Request to release a number of waiting ranks."""

    count: int
