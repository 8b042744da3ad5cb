"""Frameworks whose launchers read files of hosts: MPI's own and DeepSpeed's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.frameworks.torch import Torch
from fiber._ring.view import RingView

__all__ = ["MPI", "DeepSpeed", "hostfile", "write_files"]


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
        """Write the files."""
        return write_files(ring)

    def changed(self, ring: RingView) -> None:
        """Write them again."""
        write_files(ring)


class DeepSpeed(Torch):
    """As torch; and the hostfile of DeepSpeed's launcher."""

    name = "deepspeed"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """As torch, whose variables DeepSpeed reads; its ranks on a host are torch's local ones."""
        return {**super().environ(ring, facts), "CROSS_RANK": str(ring.me.node)}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Write the files."""
        return {**super().enter(ring, facts), **write_files(ring)}

    def changed(self, ring: RingView) -> None:
        """Write them again."""
        write_files(ring)


def write_files(ring: RingView) -> dict[str, str]:
    """Write the hosts as Open MPI and DeepSpeed, Hydra, and elastic launchers read them.

    Each file is replaced as a whole, since a launcher may read it at any moment.

    Returns:
        the variables that tell where they are.
    """
    found = {}
    for name, (file, line, head) in _FILES.items():
        path = ring.folder / file
        _replace(path, head + hostfile(ring, line), mode=0o755 if head else 0o644)
        found[name] = str(path)
    return found


def _replace(path: Path, text: str, mode: int) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)


#: variable, and its file's name, line for a host and first line
_FILES = {
    "FIBER_RING_HOSTFILE": ("hostfile", "{ip} slots={slots}", ""),
    "FIBER_RING_MACHINEFILE": ("machinefile", "{ip}:{slots}", ""),
    "FIBER_RING_DISCOVER_HOSTS": ("discover_hosts.sh", "echo {ip}:{slots}", "#!/bin/sh\n"),
}
