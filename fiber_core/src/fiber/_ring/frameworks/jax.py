"""JAX: initialises ``jax.distributed`` before user code.

JAX's coordinator, a service in the process of rank 0, has no authentication. So it listens on
loopback, and members on other hosts reach it through a port of their own loopback, see
:mod:`fiber._ring.forwarding`.

Apart from the other frameworks: each is a module, which is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Mapping
from typing import Any

from fiber._ring.forwarding import LOOPBACK, Forwarder, PipeServer, loopback_listener
from fiber._ring.framework import RingFramework
from fiber._ring.view import RingView

__all__ = ["Jax"]


class Jax(RingFramework):
    """Members as processes of one JAX program, with the coordinator service in rank 0."""

    name = "jax"

    def __init__(self) -> None:
        # in the process of rank 0: listens where the coordinator will, so that nobody else can
        self._reserved: socket.socket | None = None

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Choose the coordinator's port, and carry the connections of other hosts to it."""
        self._reserved = loopback_listener()
        ring.on_leave(self._reserved.close)
        port: int = self._reserved.getsockname()[1]
        server = PipeServer(lambda _, pipe: server.carry_to(lambda: port, pipe), ring.timing)
        ring.on_leave(server.close)
        return {"port": port, "pipes": server.pipes}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the variables that JAX and libraries on top of it read."""
        return {
            "JAX_COORDINATOR_ADDRESS": f"{LOOPBACK}:{facts['port']}",
            "JAX_NUM_PROCESSES": str(ring.size),
            "JAX_PROCESS_ID": str(ring.rank),
        }

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Initialise JAX with arguments, for it reads but one of the variables."""
        jax: Any = importlib.import_module("jax")
        address = f"{LOOPBACK}:{facts['port']}"
        more: dict[str, str] = {}
        if ring.rank == 0:
            assert self._reserved is not None
            self._reserved.close()
            # by itself it would listen on all interfaces
            more["coordinator_bind_address"] = address
        elif ring.me.node != ring.members[0].node:
            forwarder = Forwarder(lambda: facts["pipes"].open(""), ring.timing)
            ring.on_leave(forwarder.close)
            address = f"{LOOPBACK}:{forwarder.port}"
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=ring.size,
            process_id=ring.rank,
            **more,
        )
        return {"JAX_COORDINATOR_ADDRESS": address}

    def leave(self, ring: RingView) -> None:
        """Shut JAX down in all members together: the service ends with rank 0."""
        jax: Any = importlib.import_module("jax")
        jax.distributed.shutdown()
