"""What the coordinator of a ring and its members say to each other; each is one item of a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fiber._base import values
from fiber._ring.model import Host, Member


@values.frozen
class Address:
    """One address of a member's host."""

    ip: str
    #: network interface that has it
    interface: str


# -- from a member


@values.frozen(kw_only=True)
class Hello:
    """It is up."""

    host: Host
    pid: int
    #: best first, those of loopback last
    addresses: tuple[Address, ...]
    #: kept free for it; answers with :attr:`proof` until the ring has formed
    port: int
    #: by which others know that it is this member that answers
    proof: bytes


@values.frozen
class Beat:
    """It is alive."""


@values.frozen
class Probed:
    """What it found when it dialled the others: by target, the addresses that answered."""

    reached: Mapping[int, tuple[str, ...]]
    #: why others did not, by target
    failures: Mapping[int, str]


@values.frozen
class Met:
    """It knows the others, answers at its port no more, and what it opened for them is there."""

    facts: Mapping[str, Any]


@values.frozen(kw_only=True)
class Raised:
    """User code raised."""

    #: type and text
    message: str
    traceback: str
    #: the exception with its traceback as its cause, pickled
    error: bytes


@values.frozen
class Returned:
    """The function returned; its pickled value."""

    result: bytes


@values.frozen
class Kept:
    """The state that it committed last, pickled; None where it has none."""

    step: int
    state: bytes | None


# -- to a member


@values.frozen
class Target:
    """Another member, as it is to be dialled."""

    #: position among the members that are being brought together
    index: int
    ips: tuple[str, ...]
    port: int
    #: what it answers
    proof: bytes


@values.frozen
class Probe:
    """Dial the others, all addresses of each."""

    targets: tuple[Target, ...]


@values.frozen(kw_only=True)
class Meet:
    """Who the members are."""

    rank: int
    members: tuple[Member, ...]
    round: int
    restarts: int
    #: True for the one that opens what all need
    hosts: bool
    #: fewest and most ranks, where these may change while ranks run
    bounds: tuple[int, int] | None = None
    #: how many times members came or went in this round
    change: int = 0


@values.frozen(kw_only=True)
class Changed:
    """Members came or went while the function runs; who they are now."""

    rank: int
    members: tuple[Member, ...]
    #: how many times members came or went in this round
    change: int


@values.frozen(kw_only=True)
class Run:
    """Begin."""

    #: of the member that hosts
    facts: Mapping[str, Any]
    #: what a member of an earlier round committed last
    step: int
    state: bytes | None


@values.frozen
class Tell:
    """Say what was committed last."""


@values.frozen
class Leave:
    """It is over; end."""


FromMember = Hello | Beat | Probed | Met | Raised | Returned | Kept
ToMember = Probe | Meet | Changed | Run | Tell | Leave
