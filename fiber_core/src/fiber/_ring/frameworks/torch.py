"""torch.distributed: ``init_process_group("gloo")`` or ``"nccl"`` works as it stands in any member.

Ranks meet at torch's ``TCPStore``, which has no authentication. So it listens on loopback in the
process of rank 0, and members on other hosts reach it through a port of their own loopback, see
:mod:`fiber._ring.forwarding`. The ranks of a torchrun in a member meet in the same way: through the
rendezvous backend ``fiber``, see :mod:`fiber._ring.frameworks.torchrun`, which connects to its
member at a Unix socket. Apart from the other frameworks for these servers.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fiber._ring.forwarding import (
    LOOPBACK,
    Forwarder,
    Gateway,
    PipeClient,
    PipeServer,
    loopback_listener,
)
from fiber._ring.frameworks import RingFramework, torchrun
from fiber._ring.frameworks.others import write_files
from fiber._ring.frameworks.torchrun import VersionedState
from fiber._ring.model import RingTiming
from fiber._ring.view import RingView

if TYPE_CHECKING:
    from fiber.connection import Connection

#: restarts that torchrun allows; each change of members costs it one or two
_MAX_CHANGES = 1000
#: name of the ring's own store; those of torchruns have other names
_RING_STORE = ""


class Torch(RingFramework):
    """A store in rank 0 that opens before any rank connects; and the variables of ``torchrun``."""

    name = "torch"

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Open the store at a port of the system's choice; ranks only connect to it."""
        stores = _StoreServer(ring.timing)
        ring.on_leave(stores.close)
        return {"port": stores.port, "pipes": stores.pipes}

    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return variables for ``env://``, the default; and for torchrun, one process a member."""
        first = ring.members[0]
        run = f"{ring.name}.{ring.round}"
        elastic: dict[str, str] = {}
        if ring.bounds is not None:
            elastic = {
                "PET_NNODES": "{}:{}".format(*ring.bounds),
                "PET_LOCAL_ADDR": ring.me.ip,
            }
        return {
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(facts["port"]),
            # rank 0 connects to the store as well and opens none
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(ring.restarts),
            "TORCHELASTIC_RUN_ID": run,
            "PET_NNODES": str(ring.size),
            "PET_NPROC_PER_NODE": "1",
            "PET_NODE_RANK": str(ring.rank),
            "PET_RDZV_BACKEND": torchrun.NAME,
            "PET_RDZV_ID": run,
            # for the backend ``static``: torchrun itself listens there
            "PET_MASTER_ADDR": first.ip,
            "PET_MASTER_PORT": str(first.port),
            **elastic,
        }

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """Return timeouts and restarts of an elastic torchrun, which restarts with every change."""
        if ring.bounds is None:
            return {}
        return {
            "PET_RDZV_CONF": "last_call_timeout=5,keep_alive_interval=2",
            "PET_MAX_RESTARTS": str(_MAX_CHANGES),
        }

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Forward the store from another host, and open the gateway for torchruns."""
        pipes: PipeClient = facts["pipes"]
        path = str(ring.folder / "torchrun")
        gateway = Gateway(path, pipes, ring.timing)
        ring.on_leave(gateway.close)
        rank = None if ring.bounds is not None else ring.rank
        found = {"PET_RDZV_ENDPOINT": torchrun.endpoint(path, rank)}
        if ring.me.node != ring.members[0].node:
            name = torchrun.request(torchrun.STORE, _RING_STORE)
            forwarder = Forwarder(lambda: pipes.open(name), ring.timing)
            ring.on_leave(forwarder.close)
            found["MASTER_PORT"] = str(forwarder.port)
        return found

    def leave(self, ring: RingView) -> None:
        """Destroy the process group, unless the function has."""
        dist: Any = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


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


class _StoreServer:
    """Stores of a ring and of the torchruns in it, in the process of rank 0.

    A torchrun's store, and the state of its rendezvous, live from the first connection that
    requests their name to the end of the last one.

    Args:
        timing: durations of its streams.
    """

    def __init__(self, timing: RingTiming) -> None:
        self._lock = threading.Lock()
        self._shared: dict[str, _SharedByName] = {}
        self._users: dict[str, int] = {}
        # keeps the ring's own store open
        self._own = contextlib.ExitStack()
        #: port of the ring's own store on loopback
        self.port = self._own.enter_context(self._using(_RING_STORE)).port()
        self._host = PipeServer(self._serve, timing)
        #: client for the other members
        self.pipes = self._host.pipes

    def close(self) -> None:
        """Close all stores."""
        self._host.close()
        self._own.close()

    def _serve(self, request: str, pipe: Connection) -> None:
        kind, name = torchrun.parse(request)
        with self._using(name) as shared:
            if kind == torchrun.STATE:
                with shared.state.connected():
                    self._host.streams.answer(pipe, shared.state.answer)
            else:
                self._host.carry_to(shared.port, pipe)

    @contextlib.contextmanager
    def _using(self, name: str) -> Iterator[_SharedByName]:
        with self._lock:
            shared = self._shared.setdefault(name, _SharedByName())
            self._users[name] = self._users.get(name, 0) + 1
        try:
            yield shared
        finally:
            with self._lock:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name], self._shared[name]


class _SharedByName:
    """Store, and state of a rendezvous, that clients of one name share."""

    def __init__(self) -> None:
        self.state = VersionedState()
        self._lock = threading.Lock()
        self._store: Any = None

    def port(self) -> int:
        """Return the store's port on loopback; the first call opens the store."""
        with self._lock:
            if self._store is None:
                dist: Any = importlib.import_module("torch.distributed")
                # a listener that torch opens itself is on all interfaces, whatever its arguments
                listener = loopback_listener()
                self._store = dist.TCPStore(
                    LOOPBACK,
                    listener.getsockname()[1],
                    is_master=True,
                    wait_for_workers=False,
                    master_listen_fd=listener.detach(),
                )
            found: int = self._store.port
            return found
