"""Frameworks whose launchers read host files: MPI and DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fiber._ring.framework import RingFramework
from fiber._ring.frameworks.torch import Torch
from fiber._ring.view import RingView

__all__ = ["MPI", "DeepSpeed", "hostfile", "write_files"]


def hostfile(ring: RingView, line: str = "{ip} slots={slots}") -> str:
    """Return a host file: one line a host, in the order of ranks.

    Args:
        ring: view of the ring.
        line: format of a line, with ``ip`` and ``slots``.
    """
    found: dict[int, tuple[str, int]] = {}
    for member in ring.members:
        found.setdefault(member.node, (member.ip, member.local_size))
    return "".join(line.format(ip=ip, slots=slots) + "\n" for ip, slots in found.values())


class MPI(RingFramework):
    """Host files in both syntaxes, for functions that call a launcher; see also ``fiber mpirun``."""

    name = "mpi"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Allow Open MPI to run as root, as jobs in images do."""
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """Return the network interface that members reached each other through."""
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
        """Write the host files."""
        return write_files(ring)

    def changed(self, ring: RingView) -> None:
        """Write the host files again."""
        write_files(ring)


class DeepSpeed(Torch):
    """The variables of torch, and the host file of DeepSpeed's launcher."""

    name = "deepspeed"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the variables of torch, which DeepSpeed reads, and its cross rank."""
        return {**super().environ(ring, facts), "CROSS_RANK": str(ring.me.node)}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Write the host files."""
        return {**super().enter(ring, facts), **write_files(ring)}

    def changed(self, ring: RingView) -> None:
        """Write the host files again."""
        write_files(ring)


def write_files(ring: RingView) -> dict[str, str]:
    """Write host files for Open MPI and DeepSpeed, for Hydra, and for elastic launchers.

    Each file is replaced atomically, since a launcher may read it at any moment.

    Returns:
        variables with the paths of the files.
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


#: by variable: file name, format of a host's line, first line
_FILES = {
    "FIBER_RING_HOSTFILE": ("hostfile", "{ip} slots={slots}", ""),
    "FIBER_RING_MACHINEFILE": ("machinefile", "{ip}:{slots}", ""),
    "FIBER_RING_DISCOVER_HOSTS": ("discover_hosts.sh", "echo {ip}:{slots}", "#!/bin/sh\n"),
}
