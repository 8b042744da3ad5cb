"""The first process of a remote job: reads its orders, forks, supervises, ends as its first process did."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from fiber._agent.instructions import PRELOAD
from fiber._agent.job.config import GIVEN, REACH, STREAMS, Orders
from fiber._agent.job.server import JobServer
from fiber._agent.private import read_private
from fiber._agent.supervisor import kernel
from fiber._agent.supervisor.child import InChild, become
from fiber._agent.supervisor.descriptors import fill_standard_descriptors
from fiber._agent.supervisor.main import raise_descriptor_limit
from fiber._agent.supervisor.preload import preload
from fiber._tunnel.routes import is_route
from fiber.exceptions import FiberError, StartError

if TYPE_CHECKING:
    from fiber._tunnel.landing import Landing

__all__ = ["REFUSED", "main", "reaching"]

#: exit code of a job that never came to do anything
REFUSED = 126
#: what the system calls this process
_TITLE = "fiber-job"
# imported before the fork, for all processes; it opens nothing
_TRANSPORT = ("fiber._wire.nng",)


def main() -> int:
    """Be the supervisor; return the exit code for engines that see nothing else."""
    fill_standard_descriptors()
    try:
        orders = Orders.decode(read_private()).with_grace(os.environ.pop(GIVEN, ""))
        orders, landing = reaching(orders, os.environ.pop(REACH, ""))
    except FiberError as error:
        return refuse(str(error))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return refuse(f"the instructions of this job make no sense to this fiber: {error!r}")
    kernel.set_title(_TITLE)
    limit = raise_descriptor_limit()
    unix = orders.instructions.urls[0].startswith("unix:")
    preload((*PRELOAD, *(() if unix else _TRANSPORT)))
    server = JobServer(orders, landing=landing, descriptor_limit=limit)
    try:
        server.serve()
    except InChild as child:
        plan = child.plan
        server.leave_child()
    else:
        return _code(server)
    del server
    become(plan)


def reaching(orders: Orders, reach: str) -> tuple[Orders, Landing | None]:
    """How the parent is reached, as the backend says.

    Raises:
        StartError: it can be dialled by nobody, and the backend says nothing.
        TransportError: nothing can be listened on where the backend says.
    """
    told = orders.instructions
    if reach.startswith(STREAMS):
        from fiber._tunnel.landing import Landing

        landing = Landing(
            reach.removeprefix(STREAMS),
            key=told.credentials.key,
            ident=told.ident,
            patience=orders.lease,
        )
        return orders.by_landing(landing.way), landing
    if all(is_route(url) for url in told.urls):
        msg = (
            f"the parent cannot be dialled, and the backend does not say by {REACH} where it opens "
            "streams into this job"
        )
        raise StartError(msg)
    return orders.by_way_of(reach), None


def refuse(words: str) -> int:
    """Say why nothing was done."""
    with contextlib.suppress(OSError):
        os.write(2, f"fiber: {words}\n".encode("utf-8", "replace"))
    return REFUSED


def _code(server: JobServer) -> int:
    if server.refusal:
        return refuse(server.refusal)
    code = server.exit_code
    return 128 - code if code < 0 else code
