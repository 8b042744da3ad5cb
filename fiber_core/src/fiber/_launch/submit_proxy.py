"""Jobs of jobs: a process on another host has its parent submit the jobs that it starts.

The platform's credentials and its count of free places are with the program. So calls of the
backend in a process on another host go to its parent, over their connection, and from there to its
parent in turn if need be. :class:`ProxyBackend` is the child's side, :class:`SubmitProxy` the
parent's.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._base.threads import ThreadPool
from fiber._wire import codec
from fiber._wire.frames import Kind
from fiber.abc import Backend
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    FiberError,
    PeerLostError,
    TransportError,
    UnknownJobError,
)
from fiber.model import Capacity, Check, Job, JobSpec, JobStatus, Reach

if TYPE_CHECKING:
    from fiber._launch.context import LaunchContext
    from fiber._wire.client import Client
    from fiber._wire.endpoint import Peer
    from fiber._wire.frames import Message

__all__ = ["TARGET", "ManyProxyBackend", "ProxyBackend", "SubmitProxy"]

log = logging.getLogger("fiber")

#: target number of this service; those of other objects count from 1
TARGET = 2**62
_METHODS = frozenset(
    {
        *("submit", "submit_many", "terminate", "kill"),
        *("status", "logs", "capacity", "reach", "resume"),
    }
)
#: most calls of the backend at once; platforms answer some dozens side by side, and more wait
_MAX_THREADS = 64


@values.define(eq=False)
class _ProxiedJob:
    """Job that was submitted for a child."""

    job: Job
    owner: str
    status: JobStatus | None = None


class SubmitProxy:
    """Parent's side: calls the backend for children that use :class:`ProxyBackend`.

    Args:
        runtime: runtime of this process.
    """

    def __init__(self, runtime: LaunchContext) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._jobs: dict[str, _ProxiedJob] = {}
        self._peers: dict[str, Peer] = {}
        self._threads = ThreadPool("fiber-submit-proxy", _MAX_THREADS)
        # apart: submissions may wait for the place of a job that is to be killed
        self._killers = ThreadPool("fiber-submit-proxy", _MAX_THREADS)
        runtime.endpoint.serve(TARGET, self)

    def on_message(self, peer: Peer, message: Message) -> None:
        """Carry out a call on one of a bounded number of threads: platforms may be slow."""
        with self._lock:
            self._peers[peer.ident] = peer
        # where there is no thread to be had, that costs the peer its connection
        self._threads.submit(functools.partial(self._answer, peer, message.id, bytes(message.body)))

    def on_peer_lost(self, peer: Peer) -> None:
        """Note a lost connection; a child that lives dials again and calls ``resume``."""
        with self._lock:
            if self._peers.get(peer.ident) is peer:
                del self._peers[peer.ident]

    def observed(self, job: Job, status: JobStatus) -> bool:
        """Pass a status on to the child that submitted the job; False where none did."""
        with self._lock:
            proxied = self._jobs.get(job.id)
            if proxied is None:
                return False
            proxied.status = status
            peer = self._peers.get(proxied.owner)
        if peer is not None:
            peer.send(Kind.CAST, TARGET, 0, codec.dumps((job, status)))
        return True

    def ended(self, idents: Iterable[str]) -> None:
        """Kill the jobs that processes with these identities had submitted."""
        gone = frozenset(idents)
        with self._lock:
            left = [one for one in self._jobs.values() if one.owner in gone]
            for one in left:
                del self._jobs[one.job.id]
        for one in left:
            if one.status is None or not one.status.state.is_terminal:
                self._killers.submit(functools.partial(self._kill, one.job))

    def _kill(self, job: Job) -> None:
        try:
            self._runtime.backend.kill(job)
        except FiberError as error:
            log.warning("fiber: %s, whose parent has ended, cannot be ended: %s", job.name, error)

    def _answer(self, peer: Peer, number: int, body: bytes) -> None:
        try:
            method, args = codec.loads(memoryview(body))
            if method not in _METHODS:
                msg = f"{method!r} is not asked of a parent"
                raise FiberError(msg)
            answer = codec.dumps(self._do(peer.ident, method, args))
        except Exception as error:
            # any error is raised in the child
            peer.send(Kind.ERROR, TARGET, number, codec.dumps(codec.with_traceback(error)))
            return
        peer.send(Kind.REPLY, TARGET, number, answer)

    def _do(self, owner: str, method: str, args: tuple[Any, ...]) -> Any:
        if method == "submit":
            return self._accepted(owner, self._runtime.submit(*args))
        if method == "submit_many":
            made = self._runtime.submit_many(*args)
            return [
                one if isinstance(one, BackendError) else self._accepted(owner, one) for one in made
            ]
        if method == "resume":
            with self._lock:
                mine = [one for one in self._jobs.values() if one.owner == owner]
            return [(one.job, one.status) for one in mine if one.status is not None]
        backend = self._runtime.backend
        if method == "capacity":
            return backend.capacity()
        if method == "status":
            return backend.status([self._own(owner, job) for job in args[0]])
        found = getattr(backend, method)(self._own(owner, args[0]))
        return list(found) if method == "logs" else found

    def _accepted(self, owner: str, job: Job) -> Job:
        with self._lock:
            self._jobs[job.id] = _ProxiedJob(job, owner)
        for status in self._runtime.launcher.early_statuses(job):
            self.observed(job, status)
        return job

    def _own(self, owner: str, job: Job) -> Job:
        """Return a job that a child submitted; its own word for it may name any job of the platform."""
        with self._lock:
            proxied = self._jobs.get(job.id)
        if proxied is None or proxied.owner != owner:
            msg = (
                f"job {job.id} was not started by process {owner}, which may ask about its own only"
            )
            raise UnknownJobError(msg)
        return proxied.job


class ProxyBackend(Backend):
    """Child's side: backend of a process on another host.

    Args:
        name: name of the parent's backend.
        connect: makes a connection to the parent, for this object alone.
    """

    def __init__(self, name: str, connect: Callable[[], Client]) -> None:
        self.name = name
        self._connect = connect
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._events: queue.SimpleQueue[tuple[Job, JobStatus] | BaseException | None]
        self._events = queue.SimpleQueue()
        self._ended: set[str] = set()
        self._submitted = False
        self._closed = False

    def submit(self, spec: JobSpec) -> Job:
        """Submit a job through the parent."""
        job: Job = self._ask("submit", spec)
        self._submitted = True
        return job

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Statuses of jobs that were submitted through the parent."""
        while (event := self._events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            job, status = event
            if job.id in self._ended:
                continue
            if status.state.is_terminal:
                self._ended.add(job.id)
            yield job, status

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """Answer of the parent's backend."""
        found: Sequence[JobStatus] = self._ask("status", jobs)
        return found

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """Terminate a job through the parent; the grace is the platform's."""
        self._ask("terminate", job)

    def kill(self, job: Job) -> None:
        """Kill a job through the parent."""
        self._ask("kill", job)

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines that exist now; ``follow`` is ignored."""
        lines: list[str] = self._ask("logs", job)
        return iter(lines if tail is None else lines[-tail:])

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """Nothing: only the master lists jobs."""
        return ()

    def cleanup(self, run_id: str) -> None:
        """Do nothing: the master does it."""

    def capacity(self) -> Capacity:
        """Answer of the parent's backend."""
        found: Capacity = self._ask("capacity")
        return found

    def reach(self, job: Job) -> Reach:
        """Answer of the parent's backend."""
        found: Reach = self._ask("reach", job)
        return found

    def check(self) -> Iterable[Check]:
        """Check that the parent answers."""
        try:
            self._ask("capacity")
        except FiberError as error:
            return [Check(name="parent", ok=False, detail=str(error))]
        return [Check(name="parent", ok=True, detail="it answers")]

    def close(self) -> None:
        """End the events; the parent kills the jobs of this process when it has ended."""
        self._closed = True
        self._events.put(None)
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            client = self._reach_parent()
            pending = client.call(TARGET, codec.dumps((method, args)))
            pending.wait()
            return codec.loads(pending.result())
        except (PeerLostError, TransportError) as error:
            msg = f"the parent of this process, which submits its jobs, cannot be asked: {error}"
            raise BackendUnavailableError(msg) from error

    def _reach_parent(self) -> Client:
        with self._lock:
            client = self._client
            if self._closed:
                msg = "this process is ending"
                raise PeerLostError(msg)
            if client is None or client.lost:
                if client is not None:
                    client.close()
                client = self._client = self._connect()
                client.on_cast(TARGET, self._take)
                client.on_lost(self._lost)
            return client

    def _take(self, message: Message) -> None:
        self._events.put(codec.loads(message.body))

    def _lost(self) -> None:
        # on the handler thread, which must not wait for a connection
        if self._submitted and not self._closed:
            threading.Thread(target=self._resume, name="fiber-submit-proxy", daemon=True).start()

    def _resume(self) -> None:
        try:
            for event in self._ask("resume"):
                self._events.put(event)
        except FiberError as error:
            if not self._closed:
                self._events.put(error)


class ManyProxyBackend(ProxyBackend):
    """Child's side where the parent's backend takes several jobs in one call."""

    def submit_many(self, specs: Sequence[JobSpec]) -> Sequence[Job | BackendError]:
        """Submit jobs through the parent, in one call there too."""
        made: list[Job | BackendError] = self._ask("submit_many", specs)
        self._submitted = True
        return made
