"""torch.distributed: ``init_process_group("gloo")`` or ``"nccl"`` works as it stands in any member."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from fiber.ring.framework import RingFramework
from fiber.ring.view import RingView

__all__ = ["Torch"]

#: times that members may come or go while torchrun runs, each of which costs it one or two restarts
_CHANGES = 1000


class Torch(RingFramework):
    """A store that is there before anybody looks for it; and what a bare ``torchrun`` reads."""

    name = "torch"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Open the store, at a port of the system's choice; ranks only connect to it."""
        dist: Any = importlib.import_module("torch.distributed")
        kept = [dist.TCPStore(ring.me.ip, 0, is_master=True, wait_for_workers=False)]
        ring.on_leave(kept.clear)
        return {"port": kept[0].port}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """For ``env://``, which is the default; and for torchrun, one process a member."""
        first = ring.members[0]
        run = f"{ring.name}.{ring.round}"
        elastic: dict[str, str] = {}
        if ring.bounds is not None:
            # torchrun's own rendezvous, at the same store
            elastic = {
                "PET_NNODES": "{}:{}".format(*ring.bounds),
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"{first.ip}:{facts['port']}",
                "PET_LOCAL_ADDR": ring.me.ip,
            }
        return {
            "MASTER_ADDR": first.ip,
            "MASTER_PORT": str(facts["port"]),
            # the store is not rank 0's to open
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(ring.restarts),
            "TORCHELASTIC_RUN_ID": run,
            "PET_NNODES": str(ring.size),
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(ring.rank),
            "PET_MASTER_ADDR": first.ip,
            # torchrun opens a store of its own there
            "PET_MASTER_PORT": str(first.port),
            "PET_RDZV_ID": run,
            **elastic,
        }

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """How patient an elastic torchrun is: it starts its ranks again with every change."""
        if ring.bounds is None:
            return {}
        return {
            "PET_RDZV_CONF": "is_host=false,last_call_timeout=5,keep_alive_interval=2",
            "PET_MAX_RESTARTS": str(_CHANGES),
            # an agent that shares its store tells its address once, in the round in which it
            # became rank 0: who comes in a later one would wait for it in vain (2.13)
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }

    def leave(self, ring: RingView) -> None:
        """End the process group where the function has not."""
        dist: Any = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
