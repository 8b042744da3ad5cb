"""Horovod: ``hvd.init()`` over gloo, with a rendezvous server of our own and no ``horovodrun``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.frameworks.hosts import write_files
from fiber._ring.frameworks.rendezvous import Rendezvous
from fiber._ring.view import RingView

__all__ = ["Horovod"]


class Horovod(RingFramework):
    """Every member is told its place; they meet at a server in rank 0's process."""

    name = "horovod"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Start the server, at a port of the system's choice."""
        server = Rendezvous(ring.me.ip)
        ring.on_leave(server.close)
        return {"port": server.port}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What ``horovodrun`` would have set."""
        me, first = ring.me, ring.members[0]
        # hosts that have a rank at the same position as ours
        across = [one for one in ring.members if one.local_rank == me.local_rank]
        return {
            "HOROVOD_HOSTNAME": me.host,
            "HOROVOD_RANK": str(ring.rank),
            "HOROVOD_SIZE": str(ring.size),
            "HOROVOD_LOCAL_RANK": str(me.local_rank),
            "HOROVOD_LOCAL_SIZE": str(me.local_size),
            "HOROVOD_CROSS_RANK": str([one.rank for one in across].index(ring.rank)),
            "HOROVOD_CROSS_SIZE": str(len(across)),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.ip,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(facts["port"]),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """By which interface."""
        return {"HOROVOD_GLOO_IFACE": ring.me.interface} if ring.me.interface else {}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Write the script that Horovod's elastic launcher asks for hosts."""
        return write_files(ring)

    def changed(self, ring: RingView) -> None:
        """Write it again."""
        write_files(ring)
