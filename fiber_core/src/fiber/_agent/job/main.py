"""Main function of a remote job: reads its configuration, forks, supervises, returns the exit code.

Apart from ``__main__``, so that it can be imported; a forked child unwinds to :func:`main`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from fiber._agent.instructions import PRELOAD
from fiber._agent.job.config import GRACE_VARIABLE, REACH_VARIABLE, STREAMS_PREFIX, SupervisorConfig
from fiber._agent.job.server import JobServer
from fiber._agent.supervisor import kernel
from fiber._agent.supervisor.child import InChild, become
from fiber._agent.supervisor.descriptors import fill_standard_descriptors
from fiber._agent.supervisor.main import raise_descriptor_limit
from fiber._agent.supervisor.preload import preload
from fiber._tunnel.routes import is_route
from fiber.backend_parts.private import read_private
from fiber.exceptions import FiberError, StartError

if TYPE_CHECKING:
    from fiber._tunnel.server import TunnelServer

__all__ = ["REFUSED", "choose_route", "main"]

#: exit code of a job that never came to do anything
REFUSED = 126
#: what the system calls this process
_TITLE = "fiber-job"
# imported before the fork, for all processes; it opens nothing
_TRANSPORT = ("fiber._wire.nng",)


def main() -> int:
    """Run the supervisor; returns the exit code, for engines that see nothing else."""
    fill_standard_descriptors()
    try:
        config = SupervisorConfig.decode(read_private()).with_grace(
            os.environ.pop(GRACE_VARIABLE, "")
        )
        config, tunnel = choose_route(config, os.environ.pop(REACH_VARIABLE, ""))
    except FiberError as error:
        return refuse(str(error))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return refuse(f"the instructions of this job make no sense to this fiber: {error!r}")
    kernel.set_title(_TITLE)
    limit = raise_descriptor_limit()
    unix = config.instructions.urls[0].startswith("unix:")
    preload((*PRELOAD, *(() if unix else _TRANSPORT)))
    server = JobServer(config, tunnel=tunnel, descriptor_limit=limit)
    try:
        server.serve()
    except InChild as child:
        plan = child.plan
        server.leave_child()
    else:
        return _code(server)
    become(plan)


def choose_route(
    config: SupervisorConfig, reach: str
) -> tuple[SupervisorConfig, TunnelServer | None]:
    """Configuration with the addresses to dial, and the tunnel's end in this job, if there is one.

    Args:
        config: the configuration as the parent wrote it.
        reach: value of :data:`~fiber._agent.job.config.REACH_VARIABLE`, from the backend.

    Raises:
        StartError: the parent cannot be dialled, and the backend names no other way.
        TransportError: the address for streams cannot be bound.
    """
    instructions = config.instructions
    if reach.startswith(STREAMS_PREFIX):
        from fiber._tunnel.server import TunnelServer

        tunnel = TunnelServer(
            reach.removeprefix(STREAMS_PREFIX),
            credentials=instructions.credentials,
            ident=instructions.ident,
            patience=config.lease,
            timing=instructions.timing,
        )
        return config.via_tunnel(tunnel.resolve), tunnel
    if all(is_route(url) for url in instructions.urls):
        msg = (
            f"the parent cannot be dialled, and the backend does not say by {REACH_VARIABLE} where it opens "
            "streams into this job"
        )
        raise StartError(msg)
    return config.via_address(reach), None


def refuse(words: str) -> int:
    """Write to stderr why nothing was started; returns the exit code for that."""
    with contextlib.suppress(OSError):
        os.write(2, f"fiber: {words}\n".encode("utf-8", "replace"))
    return REFUSED


def _code(server: JobServer) -> int:
    if server.is_refused:
        return REFUSED
    code = server.exit_code
    return 128 - code if code < 0 else code
