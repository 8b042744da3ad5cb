"""JAX, MPI, MXNet, TensorFlow and XGBoost: frameworks of one class each; and host files for launchers.

JAX's coordinator, a service in the process of rank 0, has no authentication. So it listens on
loopback, and members on other hosts reach it through a port of their own loopback, see
:mod:`fiber._ring.forwarding`. MXNet and XGBoost read variables ``DMLC_…``, TensorFlow ``TF_CONFIG``.
"""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fiber._ring.forwarding import LOOPBACK, Forwarder, PipeServer, loopback_listener
from fiber._ring.frameworks import RingFramework
from fiber._ring.view import RingView


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


class MXNet(RingFramework):
    """Members are workers of one key-value store; user code of rank 0 starts its scheduler."""

    name = "mxnet"
    open_servers = "MXNet's scheduler and servers"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return role, scheduler's address and counts."""
        first = ring.members[0]
        return {
            "DMLC_ROLE": "worker",
            "DMLC_PS_ROOT_URI": first.ip,
            "DMLC_PS_ROOT_PORT": str(first.port),
            "DMLC_NUM_WORKER": str(ring.size),
            "DMLC_NUM_SERVER": str(ring.size),
            "DMLC_WORKER_ID": str(ring.rank),
            "DMLC_NODE_HOST": ring.me.ip,
        }


class XGBoost(RingFramework):
    """A tracker in the process of rank 0, and its address for the workers."""

    name = "xgboost"
    open_servers = "XGBoost's tracker in rank 0 and its workers"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Start XGBoost's own tracker, at a port of its choice."""
        xgboost: Any = importlib.import_module("xgboost.tracker")
        tracker = xgboost.RabitTracker(n_workers=ring.size, host_ip=ring.me.ip, port=0)
        tracker.start()
        ring.on_leave(tracker.free)
        arguments = tracker.worker_args()
        return {"uri": arguments["dmlc_tracker_uri"], "port": arguments["dmlc_tracker_port"]}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the tracker's address, and this member's task id."""
        return {
            "DMLC_TRACKER_URI": str(facts["uri"]),
            "DMLC_TRACKER_PORT": str(facts["port"]),
            "DMLC_NUM_WORKER": str(ring.size),
            "DMLC_TASK_ID": str(ring.rank),
        }


class TensorFlow(RingFramework):
    """Members as workers; rank 0 is the chief by TensorFlow's own rule."""

    name = "tensorflow"
    open_servers = "TensorFlow's server in each member"

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the cluster and this member's task."""
        config = {
            "cluster": {"worker": [f"{member.ip}:{member.port}" for member in ring.members]},
            "task": {"type": "worker", "index": ring.rank},
        }
        return {"TF_CONFIG": json.dumps(config)}


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


#: by variable: file name, format of a host's line, first line
_FILES = {
    "FIBER_RING_HOSTFILE": ("hostfile", "{ip} slots={slots}", ""),
    "FIBER_RING_MACHINEFILE": ("machinefile", "{ip}:{slots}", ""),
    "FIBER_RING_DISCOVER_HOSTS": ("discover_hosts.sh", "echo {ip}:{slots}", "#!/bin/sh\n"),
}


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
