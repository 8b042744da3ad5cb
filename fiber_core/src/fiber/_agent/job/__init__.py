"""Supervisor of one remote job, ``python -m fiber._agent.job``, and the program that starts it.

It reads a :class:`~fiber._agent.job.SupervisorConfig`, forks all processes of the job, dials
the parent, and lets the processes begin when the parent has accepted it
(:class:`~fiber._agent.job.server.StartBarrier`). From then on it reports their statuses and output
to the parent, carries out the parent's signals, and ends the job when its lease on the parent runs
out. It ends with the exit code of the first process.

Invariants:

* All forks happen before the first thread and before any socket but the one at which streams into
  the job are waited for.
* The main thread runs the event loop: it reaps, passes signals on and moves output, and never waits
  for the network. The thread ``fiber-parent-link`` owns the connection. Between them are two deques
  and two pipes that wake the other side; a lock guards the queue of output
  (:class:`~.parent_link.OutputForwarder`). Where streams come into the job there is the
  reactor of :mod:`fiber._tunnel.server` besides.
* The last status is sent until the parent acknowledges it, or its connection or lease is gone.
* SIGTERM from the platform takes the job's place away: where the parent can have the processes
  exit, they get SIGTERM only shortly before the platform's SIGKILL
  (:class:`~fiber._agent.job.server.Drain`).

The parent's half is :mod:`fiber._launch.remote_monitor`. Modules: ``server`` (from configuration to
the forked children, the supervisor, and the job's private folder), ``parent_link``. The configuration, which
the parent writes into ``JobSpec.private``, is here: the parent needs no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fiber._agent.instructions import Instructions
from fiber._base import values
from fiber._tunnel import is_route
from fiber.exceptions import StartError

#: what a remote job runs
MODULE = "fiber._agent.job"
#: environment variable by which a backend names the way to the parent: at ``host:port``, to which
#: it forwards, or by streams that it opens to :data:`STREAMS_PREFIX` and ``host:port``, a path, or
#: ``fd:number`` of a socket that is bound and that the program inherits
REACH_VARIABLE = "FIBER_REACH"
STREAMS_PREFIX = "streams:"
#: environment variable with the seconds that the backend's platform gives a job between
#: SIGTERM and SIGKILL, when it takes the place of a job away
GRACE_VARIABLE = "FIBER_GRACE"


def supervisor_ident(ident: str) -> str:
    """Identity within the run of the supervisor of a job."""
    return f"{ident}.s"


@values.frozen(kw_only=True)
class SupervisorConfig:
    """Configuration of one job's supervisor: processes, limits, lease and reporting."""

    #: instructions of each of the processes
    instructions: Instructions
    #: name of the job
    name: str
    #: environment variables of the processes, beside those of the supervisor; may be secrets, which
    #: the platform would show to whoever may look at its jobs
    env: Mapping[str, str] = values.field(factory=dict, repr=False)
    #: seconds that the parent's connection may be gone
    lease: float
    #: seconds that a connection may be silent; None: for ever
    silence: float | None
    #: CPUs that the job has; None: not limited
    cpu: float | None = None
    #: memory in MB that the job has; None: not limited
    memory: int | None = None
    #: True where the supervisor has to enforce these limits itself
    enforce_limits: bool = False
    #: True where output is sent to the parent, which prints it
    forward_output: bool = False
    #: text before each line of output that is sent
    prefix: str = ""
    #: True where the parent has the processes exit once the job is reported as draining
    drains: bool = False
    #: seconds from the platform's SIGTERM to its SIGKILL; None where it does not say
    grace: float | None = None

    def encode(self) -> bytes:
        """Bytes for ``JobSpec.private``."""
        data: dict[str, Any] = values.asdict(self)
        data["instructions"] = self.instructions.encode().decode()
        return json.dumps(data).encode()

    @classmethod
    def decode(cls, private: bytes) -> SupervisorConfig:
        """Read the bytes that :meth:`encode` wrote."""
        data = json.loads(private)
        data["instructions"] = Instructions.decode(data["instructions"].encode())
        return cls(**data)

    def via_address(self, reach: str) -> SupervisorConfig:
        """Copy for a job that dials its parent.

        Args:
            reach: ``host:port`` that the backend forwards to the parent; "" where it forwards none.
        """
        instructions = self.instructions
        urls = tuple(url for url in instructions.urls if not is_route(url))
        forwards = {}
        if reach:
            forwards = {urls[0]: f"{urls[0].partition('://')[0]}://{reach}"}
            urls = (*forwards.values(), *urls)
        return values.evolve(
            self, instructions=values.evolve(instructions, urls=urls, forwards=forwards)
        )

    def with_grace(self, given: str) -> SupervisorConfig:
        """Copy with the seconds that the platform gives a job between SIGTERM and SIGKILL.

        Args:
            given: the number as text; "" where the backend does not say.

        Raises:
            StartError: it is no number of seconds.
        """
        if not given:
            return self
        try:
            grace = float(given)
        except ValueError:
            grace = -1.0
        # NaN compares false with everything, so test for the accepted range
        if not grace >= 0:
            msg = f"the backend sets {GRACE_VARIABLE} to {given!r}, which is no number of seconds"
            raise StartError(msg)
        return values.evolve(self, grace=grace)

    def via_tunnel(self, resolve: Callable[[str], str]) -> SupervisorConfig:
        """Copy for a job into which the parent opens streams.

        Args:
            resolve: returns the address to dial in place of a URL.
        """
        instructions = self.instructions
        # another host's loopback is not ours
        found = [url for url in instructions.urls if is_route(url) or "//127." not in url]
        dialled = {url: resolve(url) for url in found or instructions.urls}
        forwards = {url: to for url, to in dialled.items() if to != url}
        changed = values.evolve(
            instructions, urls=tuple(dialled.values()), forwards=forwards, tunnelled=True
        )
        return values.evolve(self, instructions=changed)
