"""What the coordinator and the stations of a run tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fiber._base import values

__all__ = [
    "Address",
    "Asked",
    "Close",
    "Dial",
    "Dialled",
    "Ended",
    "FromStation",
    "Go",
    "Input",
    "Lead",
    "Leading",
    "Out",
    "RankEnded",
    "RankUp",
    "Refused",
    "Rename",
    "Renamed",
    "Run",
    "Signal",
    "ToStation",
    "Up",
]

# -- from a station


@values.frozen
class Address:
    """One address of a station's host."""

    #: its interface
    interface: str
    #: numeric, IPv4
    address: str
    #: the network it is in, as ``10.0.0.0/16``
    network: str


@values.frozen(kw_only=True)
class Up:
    """A station is there."""

    #: its host's name
    host: str
    #: where it can be dialled
    addresses: tuple[Address, ...]
    #: port of its beacon
    port: int
    #: its own folder there, that is removed with it
    folder: str = ""


@values.frozen
class Dialled:
    """Which of the addresses answered, with the right name."""

    #: pairs of a station's name and an address of its
    reached: frozenset[tuple[str, str]]


@values.frozen
class Renamed:
    """Whether a station's programs see a host name of their own."""

    done: bool


@values.frozen
class Leading:
    """The launcher has its door and its files."""

    #: folder with the files, on its host
    folder: str


@values.frozen
class Asked:
    """An agent of the launcher asks for a command on a member."""

    call: int
    host: str
    command: str


@values.frozen
class Out:
    """A command wrote something."""

    call: int
    #: 1 or 2
    stream: int
    data: bytes


@values.frozen
class Ended:
    """A command has ended, after all that it wrote."""

    call: int
    #: exit code, or minus the signal
    code: int


@values.frozen
class Refused:
    """A command cannot be started."""

    call: int
    why: str


@values.frozen
class RankUp:
    """A rank waits to begin."""

    rank: int
    pid: int


@values.frozen
class RankEnded:
    """A rank has ended, as a shell tells it."""

    rank: int
    code: int


# -- to a station


@values.frozen
class Dial:
    """Try to reach others: name, address and port of each."""

    token: str
    targets: tuple[tuple[str, str, int], ...]


@values.frozen
class Rename:
    """Have programs see the station's name as their host's."""


@values.frozen
class Lead:
    """Be the launcher: open a door for agents, and write files."""

    #: content by name; names that end in ``.sh`` are made executable
    files: Mapping[str, str]


@values.frozen(kw_only=True)
class Run:
    """Start a command; Out and Ended, or Refused, follow."""

    call: int
    argv: tuple[str, ...]
    #: on top of the station's own
    env: Mapping[str, str] = values.field(factory=dict)
    #: names in ``env`` that count only where the station's own environment has none
    wishes: frozenset[str] = frozenset()


@values.frozen
class Input:
    """For a command's standard input; empty data ends it."""

    call: int
    data: bytes


@values.frozen
class Signal:
    """For all processes of a command."""

    call: int
    number: int


@values.frozen
class Go:
    """So many ranks may begin."""

    count: int


@values.frozen
class Close:
    """End all commands, and then the station."""


FromStation: TypeAlias = (
    Asked
    | Dialled
    | Ended
    | Input
    | Leading
    | Out
    | RankEnded
    | RankUp
    | Refused
    | Renamed
    | Signal
    | Up
)
ToStation: TypeAlias = (
    Close | Dial | Ended | Go | Input | Lead | Out | Refused | Rename | Run | Signal
)
