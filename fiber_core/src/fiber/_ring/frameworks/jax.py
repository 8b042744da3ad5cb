"""JAX: ``jax.distributed`` is initialised before the user's code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.view import RingView

__all__ = ["Jax"]


class Jax(RingFramework):
    """All members are processes of one JAX program; the coordinator service is in rank 0."""

    name = "jax"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What JAX, and libraries on top of it, look for."""
        return {
            "JAX_COORDINATOR_ADDRESS": _coordinator(ring),
            "JAX_NUM_PROCESSES": str(ring.size),
            "JAX_PROCESS_ID": str(ring.rank),
        }

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Join; by arguments, for JAX reads but one of the variables."""
        jax: Any = importlib.import_module("jax")
        jax.distributed.initialize(
            coordinator_address=_coordinator(ring),
            num_processes=ring.size,
            process_id=ring.rank,
        )
        return {}

    def leave(self, ring: RingView) -> None:
        """Leave together: the service ends with rank 0."""
        jax: Any = importlib.import_module("jax")
        jax.distributed.shutdown()


def _coordinator(ring: RingView) -> str:
    first = ring.members[0]
    return f"{first.ip}:{first.port}"
