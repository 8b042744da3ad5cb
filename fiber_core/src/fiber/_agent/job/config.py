"""What the supervisor of a remote job is told privately."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fiber._agent.instructions import Instructions
from fiber._base import values
from fiber._tunnel.routes import is_route
from fiber.exceptions import StartError

__all__ = ["GIVEN", "GRACE", "MODULE", "REACH", "STREAMS", "Orders", "supervisor_ident"]

#: what a remote job runs
MODULE = "fiber._agent.job"
#: environment variable by which a backend says how the parent is reached: at ``host:port``, to which
#: it forwards, or by streams that it opens to :data:`STREAMS` and ``host:port``, a path, or
#: ``fd:number`` of a socket that is bound and that the program inherits
REACH = "FIBER_REACH"
STREAMS = "streams:"
#: environment variable by which a backend says how many seconds its platform gives a job between
#: SIGTERM and SIGKILL, when it takes the place of a job away
GIVEN = "FIBER_GRACE"
#: seconds between SIGTERM and SIGKILL when a lease ends
GRACE = 2.0


def supervisor_ident(ident: str) -> str:
    """Identity within the run of the supervisor of a job."""
    return f"{ident}.s"


@values.frozen(kw_only=True)
class Orders:
    """Enough to start a job's processes, to tell of them, and to know when to end them."""

    #: what each of the processes is told
    instructions: Instructions
    #: name of the job
    name: str
    #: seconds that the parent's connection may be gone
    lease: float
    #: seconds that it may be there and silent; None where that proves nothing
    silence: float | None
    #: CPUs that the job has; None: not limited
    cpu: float | None = None
    #: memory in MB that the job has; None: not limited
    memory: int | None = None
    #: True where nobody but the supervisor enforces these
    confine: bool = False
    #: True where the parent shows what the job writes, and nothing else brings it
    tell_output: bool = False
    #: put before each line that is shown so
    prefix: str = ""
    #: True where the parent has processes exit by itself, once it is told that the job has to go
    drains: bool = False
    #: seconds that the platform gives a job that has to go; None where it does not say
    grace: float | None = None

    def encode(self) -> bytes:
        """For ``JobSpec.private``."""
        data: dict[str, Any] = values.asdict(self)
        data["instructions"] = self.instructions.encode().decode()
        return json.dumps(data).encode()

    @classmethod
    def decode(cls, private: bytes) -> Orders:
        """What :meth:`encode` wrote."""
        data = json.loads(private)
        data["instructions"] = Instructions.decode(data["instructions"].encode())
        return cls(**data)

    def by_way_of(self, reach: str) -> Orders:
        """The same where the parent is to be dialled, at ``host:port`` in place of where it says.

        Args:
            reach: what the backend says; nothing where it does not forward.
        """
        told = self.instructions
        urls = tuple(url for url in told.urls if not is_route(url))
        forwards = {}
        if reach:
            forwards = {urls[0]: f"{urls[0].partition('://')[0]}://{reach}"}
            urls = (*forwards.values(), *urls)
        return values.evolve(self, instructions=values.evolve(told, urls=urls, forwards=forwards))

    def with_grace(self, given: str) -> Orders:
        """The same where the backend says how long the platform waits.

        Args:
            given: what it says; nothing where it does not.

        Raises:
            StartError: it is no number of seconds.
        """
        if not given:
            return self
        try:
            grace = float(given)
        except ValueError:
            grace = -1.0
        # what is no number at all is no larger than another either
        if not grace >= 0:
            msg = f"the backend sets {GIVEN} to {given!r}, which is no number of seconds"
            raise StartError(msg)
        return values.evolve(self, grace=grace)

    def by_landing(self, way: Callable[[str], str]) -> Orders:
        """The same where streams are opened into this job.

        Args:
            way: what is dialled in place of a URL.
        """
        told = self.instructions
        # another host's loopback is not ours
        found = [url for url in told.urls if is_route(url) or "//127." not in url]
        ways = {url: way(url) for url in found or told.urls}
        forwards = {url: dialled for url, dialled in ways.items() if dialled != url}
        instructions = values.evolve(
            told, urls=tuple(ways.values()), forwards=forwards, landing=True
        )
        return values.evolve(self, instructions=instructions)
