"""What the supervisor of a remote job is told privately."""

from __future__ import annotations

import json
from typing import Any

from fiber import values
from fiber.launch.bootstrap import Instructions

__all__ = ["GRACE", "MODULE", "REACH", "Orders", "supervisor_ident"]

#: what a remote job runs
MODULE = "fiber.launch.job"
#: environment variable by which a backend that forwards says where: ``host:port``
REACH = "FIBER_REACH"
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
        """The same where the parent is to be dialled at ``host:port`` in place of where it says.

        Args:
            reach: what the backend says; nothing where it does not forward.
        """
        if not reach:
            return self
        told = self.instructions
        first = told.urls[0]
        way = f"{first.partition('://')[0]}://{reach}"
        forwards = {first: way}
        instructions = values.evolve(told, urls=(way, *told.urls), forwards=forwards)
        return values.evolve(self, instructions=instructions)
