"""JAX: initialises ``jax.distributed`` before user code.

Apart from the other frameworks: each is a module, which is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.view import RingView

__all__ = ["Jax"]


class Jax(RingFramework):
    """Members as processes of one JAX program, with the coordinator service in rank 0."""

    name = "jax"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the variables that JAX and libraries on top of it read."""
        return {
            "JAX_COORDINATOR_ADDRESS": _coordinator(ring),
            "JAX_NUM_PROCESSES": str(ring.size),
            "JAX_PROCESS_ID": str(ring.rank),
        }

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Initialise JAX with arguments, for it reads but one of the variables."""
        jax: Any = importlib.import_module("jax")
        jax.distributed.initialize(
            coordinator_address=_coordinator(ring),
            num_processes=ring.size,
            process_id=ring.rank,
            # else its coordinator listens on all interfaces
            coordinator_bind_address=_coordinator(ring),
        )
        return {}

    def leave(self, ring: RingView) -> None:
        """Shut JAX down in all members together: the service ends with rank 0."""
        jax: Any = importlib.import_module("jax")
        jax.distributed.shutdown()


def _coordinator(ring: RingView) -> str:
    first = ring.members[0]
    return f"{first.ip}:{first.port}"
