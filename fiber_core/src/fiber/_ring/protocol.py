"""Messages between a ring's controller and its members; each is one pickled item of a pipe.

A start goes: :class:`Hello` from each member, :class:`Probe` to each, :class:`ProbeResult` from
each, :class:`Assignment` to each, :class:`Ready` from each, :class:`Run` to each, and then
:class:`Returned` or :class:`Raised` from each. :class:`Heartbeat` comes at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fiber._base import values
from fiber._ring.model import Host, Member


@values.frozen
class Address:
    """An IPv4 address of a member's host."""

    ip: str
    #: name of its network interface
    interface: str
    #: the network it is in, as ``10.0.0.0/16``, and the kernel's index of the interface, for MPI
    network: str = ""
    index: int = 0


# -- from a member


@values.frozen(kw_only=True)
class Hello:
    """The member is up; always its first message."""

    host: Host
    pid: int
    #: addresses of its host, best first, loopback last
    addresses: tuple[Address, ...]
    #: port reserved for it; answers probes with :attr:`proof` until all members are ready
    port: int
    #: random bytes that identify this member to those that probe it
    proof: bytes
    #: its private folder, where it has one: removed at its end
    folder: str = ""


@values.frozen
class Heartbeat:
    """The member is alive; sent where nothing else came from it for an interval."""


@values.frozen
class ProbeResult:
    """Result of a probe: the addresses that answered, by target."""

    reached: Mapping[int | str, tuple[str, ...]]
    #: error of the last address that failed, by target
    failures: Mapping[int | str, str]


@values.frozen
class Ready:
    """The member has the member table, its port is free again, and its servers are open."""

    #: the framework's facts, from rank 0
    facts: Mapping[str, Any]


@values.frozen(kw_only=True)
class Raised:
    """User code raised."""

    #: type and text of the exception
    message: str
    traceback: str
    #: the pickled exception, its traceback as its cause
    error: bytes


@values.frozen
class Returned:
    """The function returned; has its pickled result."""

    result: bytes


@values.frozen
class StateReply:
    """The state that the member committed last, pickled; None if there is none."""

    step: int
    state: bytes | None


# -- to a member


@values.frozen
class ProbeTarget:
    """Another member to dial."""

    #: key of the target in :class:`ProbeResult`
    index: int | str
    ips: tuple[str, ...]
    port: int
    #: bytes that it must answer
    proof: bytes


@values.frozen
class Probe:
    """Request to dial all addresses of all targets."""

    targets: tuple[ProbeTarget, ...]


@values.frozen(kw_only=True)
class Assignment:
    """Rank of the member and the table of all members."""

    rank: int
    members: tuple[Member, ...]
    round: int
    restarts: int
    #: True for rank 0, whose process opens the framework's servers
    is_host: bool
    #: fewest and most ranks of a live ring; None for others
    bounds: tuple[int, int] | None = None
    #: changes of members in this round so far
    change: int = 0


@values.frozen(kw_only=True)
class MembersChanged:
    """New rank and member table after members came or went while the function runs."""

    rank: int
    members: tuple[Member, ...]
    #: changes of members in this round so far
    change: int


@values.frozen(kw_only=True)
class Run:
    """Request to run the function."""

    #: the framework's facts, from rank 0
    facts: Mapping[str, Any]
    #: newest state that a member committed, pickled, and its step
    step: int
    state: bytes | None


@values.frozen
class StateRequest:
    """Request for the state that was committed last."""


@values.frozen
class Leave:
    """Request to end: the ring is over."""
