"""Rendezvous backend ``fiber`` of torchrun, for torchruns that the members of a ring start.

torchrun loads this module by the entry point ``fiber`` of the group ``torchrun.handlers``, which is
why it stands apart from :mod:`fiber._ring.frameworks.torch`. A torchrun has no key of the run: it
connects to a Unix socket in its member's private folder, which forwards to the process of rank 0.

torch's own backend ``c10d`` keeps the state of a rendezvous in a store that every host on the
network may write to, and unpickles it. This one keeps it with rank 0, where only members reach it,
and no store listens on anything but loopback.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import logging
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection
from typing import Any

from fiber._ring.forwarding import LOOPBACK, Forwarder
from fiber._ring.model import RingTiming
from fiber.exceptions import WireError

#: name of the backend
NAME = "fiber"
#: kinds of requests: a connection to a store, and the state of a rendezvous
STORE = "store"
STATE = "state"

_RANK = "?rank="
# request: whether to replace the state, and the version to replace; the state follows
_REQUEST = struct.Struct("<?Q")
# reply: whether it was replaced, its version, 0 before it is set, and the number of torchruns that
# are connected; the state follows
_REPLY = struct.Struct("<?QQ")
#: key of a round's store: the number of torchruns that came
_CAME = "fiber.came"

#: a torchrun is not told the scale of the ring's durations
_TIMING = RingTiming()

log = logging.getLogger("fiber")


def endpoint(path: str, rank: int | None) -> str:
    """Return the value of torchrun's ``--rdzv-endpoint``.

    Args:
        path: the member's socket.
        rank: the member's rank; None for live rings, where torchruns agree on theirs.
    """
    return path if rank is None else f"{path}{_RANK}{rank}"


def request(kind: str, name: str) -> str:
    """Return the first message of a connection to a member's socket."""
    return f"{kind} {name}"


def parse(text: str) -> tuple[str, str]:
    """Return kind and name of a request."""
    kind, _, name = text.partition(" ")
    return kind, name


class VersionedState:
    """State of a rendezvous with a version; replaced by compare-and-set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = b""
        self._version = 0
        self._connected = 0

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Count a torchrun as connected."""
        with self._lock:
            self._connected += 1
        try:
            yield
        finally:
            with self._lock:
                self._connected -= 1

    def answer(self, request_bytes: bytes) -> bytes:
        """Process a request of a :class:`_Backend`, and return the reply.

        Raises:
            WireError: it is cut short.
        """
        if len(request_bytes) < _REQUEST.size:
            msg = f"a torchrun's request of {len(request_bytes)} bytes is cut short"
            raise WireError(msg)
        replaces, version = _REQUEST.unpack_from(request_bytes)
        with self._lock:
            is_set = replaces and version == self._version
            if is_set:
                self._state, self._version = request_bytes[_REQUEST.size :], version + 1
            return _REPLY.pack(is_set, self._version, self._connected) + self._state


# -- in torchrun's process


def get_handler() -> Callable[[Any], Any]:
    """Return the function that torchrun calls with the parameters of a rendezvous."""
    return _create


def _create(params: Any) -> Any:
    path, _, rank = params.endpoint.partition(_RANK)
    if not path.startswith("/"):
        msg = (
            f"the rendezvous backend {NAME!r} is for a torchrun in a member of a ring, which finds "
            f"its endpoint in PET_RDZV_ENDPOINT; {params.endpoint!r} is none"
        )
        raise ValueError(msg)
    return _Static(path, params, int(rank)) if rank else _Dynamic(path, params)


class _Rendezvous:
    """A ``torch.distributed.elastic.rendezvous.RendezvousHandler``."""

    #: ranks connect to the agent's store, and open none
    use_agent_store = True

    def __init__(self, path: str, params: Any) -> None:
        self._path = path
        self._params = params
        self._forwarder: Forwarder | None = None

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        run: str = self._params.run_id
        return run

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        if self._forwarder is not None:
            self._forwarder.close()
            self._forwarder = None
        return True

    def _formed(self, name: str, rank: int, size: int) -> Any:
        """Return the information of a new round, which has a store of its own."""
        # close the forwarder of the last round
        _Rendezvous.shutdown(self)
        self._forwarder, store = _open_store(
            self._path, f"{self.get_run_id()}/{name}", self._params
        )
        api = _torch("distributed.elastic.rendezvous.api")
        return api.RendezvousInfo(
            _torch("distributed").PrefixStore("torchrun", store),
            rank,
            size,
            api.RendezvousStoreInfo(LOOPBACK, self._forwarder.port),
        )


class _Static(_Rendezvous):
    """Rendezvous of one torchrun in each member, with its rank; or of a single one."""

    def __init__(self, path: str, params: Any, rank: int) -> None:
        super().__init__(path, params)
        self._size: int = params.max_nodes
        self._name, self._rank = ("all", rank) if self._size > 1 else (f"rank {rank}", 0)
        if self._rank >= self._size:
            msg = (
                f"torchrun was given {self._size} nodes, and rank {rank} of the ring is none of "
                f"them; leave --nnodes out for all members, or use --nnodes 1 for this one alone"
            )
            raise ValueError(msg)
        self._round = 0

    def next_rendezvous(self) -> Any:
        self._round += 1
        return self._formed(f"{self._name}/{self._round}", self._rank, self._size)


class _Dynamic(_Rendezvous):
    """Rendezvous of a live ring: torch's own dynamic one, with its state in rank 0.

    torch notices that a torchrun is gone by the errors of those that communicate with its ranks.
    Those that wait for its ranks to come have none, and would wait for hours; so they form up again
    once fewer torchruns are connected than there are in the round.
    """

    def __init__(self, path: str, params: Any) -> None:
        super().__init__(path, params)
        # else torch opens a store on all interfaces
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        run = self.get_run_id()
        #: seconds for another one's answer or message
        self._timeout: int = params.get_as_int("read_timeout", 60)
        self._backend = _Backend(_connect(path, STATE, run), self._timeout)
        self._own_forwarder, store = _open_store(path, run, params, self._timeout)
        #: torchruns of the round
        self._size = 0
        dynamic = _torch("distributed.elastic.rendezvous.dynamic_rendezvous")
        self._torch = dynamic.create_handler(store, self._backend, params)

    def is_closed(self) -> bool:
        found: bool = self._torch.is_closed()
        return found

    def set_closed(self) -> None:
        self._torch.set_closed()

    def num_nodes_waiting(self) -> int:
        """Return a number above 0 if the ranks have to start again; torchrun asks every while."""
        found: int = self._torch.num_nodes_waiting()
        gone = self._size - self._backend.connected
        # one that is done closes the rendezvous before it leaves
        if found or gone <= 0 or self.is_closed():
            return found
        log.warning("fiber: %d of %d torchruns left; the others go on", gone, self._size)
        return gone

    def next_rendezvous(self) -> Any:
        while True:
            try:
                found = self._torch.next_rendezvous()
            except _torch("distributed").DistStoreError as error:
                log.warning("fiber: a torchrun left while all met; they meet again: %s", error)
                continue
            self._size = found.world_size
            if self._have_all_come(found.store):
                break
            came = found.store.add(_CAME, 0)
            log.warning("fiber: %d of %d torchruns came; they meet again", came, self._size)
        # whoever is first names it: any of them may leave
        name = found.store.compare_set("fiber.round", "", secrets.token_hex(8))
        return self._formed(name.decode(), found.rank, found.world_size)

    def _have_all_come(self, store: Any) -> bool:
        """Wait for all torchruns of a round; False where they have to meet again."""
        until = time.monotonic() + self._timeout
        came = store.add(_CAME, 1)
        while came < self._size:
            if self.is_closed() or self.num_nodes_waiting() or time.monotonic() > until:
                return False
            # a store's own wait that runs out is told by torch on standard error, each time
            time.sleep(_TIMING.poll)
            came = store.add(_CAME, 0)
        return True

    def shutdown(self) -> bool:
        done: bool = self._torch.shutdown()
        super().shutdown()
        self._own_forwarder.close()
        self._backend.close()
        return done


class _Backend:
    """A ``torch.distributed.elastic.rendezvous.dynamic_rendezvous.RendezvousBackend``.

    Args:
        connection: to the process of rank 0.
        timeout: seconds for an answer.
    """

    name = NAME

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._connection, self._timeout = connection, timeout
        #: torchruns that were connected at the last answer
        self.connected = 0
        self._lock = threading.Lock()

    def get_state(self) -> tuple[bytes, int] | None:
        found = self._ask(_REQUEST.pack(False, 0))
        return found and found[:2]

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        return self._ask(_REQUEST.pack(True, token or 0) + state)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, request_bytes: bytes) -> tuple[bytes, int, bool] | None:
        try:
            with self._lock:
                self._connection.send_bytes(request_bytes)
                if not self._connection.poll(self._timeout):
                    # else a late reply would be taken for that of the next request
                    self._connection.close()
                answer = self._connection.recv_bytes()
        except (OSError, EOFError) as error:
            msg = "rank 0 of the ring, which has the state of the rendezvous, cannot be reached"
            api = _torch("distributed.elastic.rendezvous.api")
            raise api.RendezvousConnectionError(msg) from error
        is_set, version, self.connected = _REPLY.unpack_from(answer)
        return (answer[_REPLY.size :], version, is_set) if version else None


def _connect(path: str, kind: str, name: str) -> Connection:
    connection = Client(path, "AF_UNIX")
    connection.send_bytes(request(kind, name).encode())
    return connection


def _open_store(
    path: str, name: str, params: Any, timeout: float | None = None
) -> tuple[Forwarder, Any]:
    """Return a store, and the forwarder that the ranks of this torchrun use as well.

    Args:
        path: the member's socket.
        name: of the store.
        params: of the rendezvous.
        timeout: seconds that it waits for a key; those for all nodes to come by default.
    """
    forwarder = Forwarder(functools.partial(_connect, path, STORE, name), _TIMING)
    store = _torch("distributed").TCPStore(
        LOOPBACK,
        forwarder.port,
        is_master=False,
        timeout=dt.timedelta(seconds=timeout or params.get_as_int("timeout", 600)),
    )
    return forwarder, store


def _torch(name: str) -> Any:
    # members import this module too, and torch only where it is used
    return importlib.import_module(f"torch.{name}")
