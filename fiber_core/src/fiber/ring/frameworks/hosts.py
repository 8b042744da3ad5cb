"""Frameworks that read a hostfile: MPI's own launchers and DeepSpeed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fiber.ring.framework import RingFramework
from fiber.ring.frameworks.torch import Torch
from fiber.ring.view import RingView

__all__ = ["MPI", "DeepSpeed", "hostfile"]


def hostfile(ring: RingView, line: str = "{ip} slots={slots}") -> str:
    """One line a host, in the order of ranks.

    Args:
        ring: whose hosts.
        line: how one is written.
    """
    found: dict[int, tuple[str, int]] = {}
    for member in ring.members:
        found.setdefault(member.node, (member.ip, member.local_size))
    return "".join(line.format(ip=ip, slots=slots) + "\n" for ip, slots in found.values())


class MPI(RingFramework):
    """Hostfiles in both syntaxes, for a function that calls a launcher; see also ``fiber mpirun``."""

    name = "mpi"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """What Open MPI needs where jobs run as root, which those in images do."""
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """The network that members reached each other in, for hosts that have several."""
        interface = ring.me.interface
        if not interface:
            return {}
        return {
            "OMPI_MCA_oob_tcp_if_include": interface,
            "OMPI_MCA_btl_tcp_if_include": interface,
            "HYDRA_IFACE": interface,
            "I_MPI_HYDRA_IFACE": interface,
        }

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Write the hostfiles."""
        folder = _folder(ring)
        path = folder / "hostfile"
        path.write_text(hostfile(ring))
        (folder / "machinefile").write_text(hostfile(ring, "{ip}:{slots}"))
        return {
            "FIBER_RING_HOSTFILE": str(path),
            "FIBER_RING_MACHINEFILE": str(folder / "machinefile"),
        }


class DeepSpeed(Torch):
    """As torch; and the hostfile of DeepSpeed's launcher."""

    name = "deepspeed"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """As torch, whose variables DeepSpeed reads; its ranks on a host are torch's local ones."""
        return {**super().environ(ring, facts), "CROSS_RANK": str(ring.me.node)}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Write the hostfile."""
        path = _folder(ring) / "hostfile"
        path.write_text(hostfile(ring))
        return {"FIBER_RING_HOSTFILE": str(path)}


def _folder(ring: RingView) -> Path:
    folder = tempfile.mkdtemp(prefix=f"fiber-{ring.name}-")
    ring.on_leave(lambda: shutil.rmtree(folder, ignore_errors=True))
    return Path(folder)
