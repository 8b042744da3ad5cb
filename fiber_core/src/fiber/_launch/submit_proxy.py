"""Jobs of jobs: a process on another host has its parent submit what it starts.

An engine, its credentials and its count of free places are where the program began. So what a process
elsewhere asks of its backend goes to its parent, over their connection, and from there on if need be.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._wire import codec
from fiber._wire.frames import Kind
from fiber.abc import Backend
from fiber.exceptions import BackendUnavailableError, FiberError, PeerLostError, TransportError
from fiber.model import Capacity, Check, Job, JobSpec, JobStatus, Reach

if TYPE_CHECKING:
    from fiber._launch.context import LaunchContext
    from fiber._wire.client import Client
    from fiber._wire.endpoint import Peer
    from fiber._wire.frames import Message

__all__ = ["TARGET", "RelayBackend", "Relays"]

log = logging.getLogger("fiber")

#: what children address; numbers of other objects count from 1
TARGET = 2**62
_ASKED = frozenset({"submit", "terminate", "kill", "status", "logs", "capacity", "reach", "resume"})


@values.define(eq=False)
class _Relayed:
    """A job that was submitted for a child."""

    job: Job
    owner: str
    status: JobStatus | None = None


class Relays:
    """The parent's side; children ask by :class:`RelayBackend`.

    Args:
        runtime: of this process.
    """

    def __init__(self, runtime: LaunchContext) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._jobs: dict[str, _Relayed] = {}
        self._peers: dict[str, Peer] = {}
        runtime.endpoint.serve(TARGET, self)

    def on_message(self, peer: Peer, message: Message) -> None:
        """Have a question answered, on a thread of its own: platforms take their time."""
        with self._lock:
            self._peers[peer.ident] = peer
        threading.Thread(
            target=self._answer,
            args=(peer, message.id, bytes(message.body)),
            name="fiber-relay",
            daemon=True,
        ).start()

    def on_peer_lost(self, peer: Peer) -> None:
        """A child that lives dials again, and then asks what it missed."""
        with self._lock:
            if self._peers.get(peer.ident) is peer:
                del self._peers[peer.ident]

    def observed(self, job: Job, status: JobStatus) -> bool:
        """A job changed; False where it is not of a child."""
        with self._lock:
            relayed = self._jobs.get(job.id)
            if relayed is None:
                return False
            relayed.status = status
            peer = self._peers.get(relayed.owner)
        if peer is not None:
            peer.send(Kind.CAST, TARGET, 0, codec.dumps((job, status)))
        return True

    def ended(self, idents: Iterable[str]) -> None:
        """Processes of ours have ended: what they had started ends with them."""
        gone = frozenset(idents)
        with self._lock:
            left = [one for one in self._jobs.values() if one.owner in gone]
            for one in left:
                del self._jobs[one.job.id]
        for one in left:
            if one.status is None or not one.status.state.is_terminal:
                threading.Thread(
                    target=self._kill, args=(one.job,), name="fiber-relay", daemon=True
                ).start()

    def _kill(self, job: Job) -> None:
        try:
            self._runtime.backend.kill(job)
        except FiberError as error:
            log.warning("fiber: %s, whose parent has ended, cannot be ended: %s", job.name, error)

    def _answer(self, peer: Peer, number: int, body: bytes) -> None:
        try:
            method, args = codec.loads(memoryview(body))
            if method not in _ASKED:
                msg = f"{method!r} is not asked of a parent"
                raise FiberError(msg)
            answer = codec.dumps(self._do(peer.ident, method, args))
        except Exception as error:
            # whatever it is, it is the asker's
            peer.send(Kind.ERROR, TARGET, number, codec.dumps(codec.with_traceback(error)))
            return
        peer.send(Kind.REPLY, TARGET, number, answer)

    def _do(self, owner: str, method: str, args: tuple[Any, ...]) -> Any:
        if method == "submit":
            job = self._runtime.submit(*args)
            with self._lock:
                self._jobs[job.id] = _Relayed(job, owner)
            for status in self._runtime.launcher.relayed(job):
                self.observed(job, status)
            return job
        if method == "resume":
            with self._lock:
                mine = [one for one in self._jobs.values() if one.owner == owner]
            return [(one.job, one.status) for one in mine if one.status is not None]
        found = getattr(self._runtime.backend, method)(*args)
        return list(found) if method == "logs" else found


class RelayBackend(Backend):
    """The child's side: the backend of a process on another host.

    Args:
        name: of the real one.
        connect: makes a connection to the parent, for this object alone.
    """

    def __init__(self, name: str, connect: Callable[[], Client]) -> None:
        self.name = name
        self._connect = connect
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._told: queue.SimpleQueue[tuple[Job, JobStatus] | BaseException | None]
        self._told = queue.SimpleQueue()
        self._ended: set[str] = set()
        self._submitted = False
        self._closed = False

    def submit(self, spec: JobSpec) -> Job:
        """Have the parent submit it."""
        job: Job = self._ask("submit", spec)
        self._submitted = True
        return job

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """What the parent tells of jobs that this process had it submit."""
        while (told := self._told.get()) is not None:
            if isinstance(told, BaseException):
                raise told
            job, status = told
            if job.id in self._ended:
                continue
            if status.state.is_terminal:
                self._ended.add(job.id)
            yield job, status

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """As the parent's backend has it."""
        found: Sequence[JobStatus] = self._ask("status", jobs)
        return found

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """Have the parent do it; the grace is the platform's."""
        self._ask("terminate", job)

    def kill(self, job: Job) -> None:
        """Have the parent do it."""
        self._ask("kill", job)

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """The lines there are; they are not followed from here."""
        lines: list[str] = self._ask("logs", job)
        return iter(lines if tail is None else lines[-tail:])

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """Nothing is listed from here: the master can."""
        return ()

    def cleanup(self, run_id: str) -> None:
        """The master does it."""

    def capacity(self) -> Capacity:
        """As the parent's backend has it."""
        found: Capacity = self._ask("capacity")
        return found

    def reach(self, job: Job) -> Reach:
        """As the parent's backend has it."""
        found: Reach = self._ask("reach", job)
        return found

    def check(self) -> Iterable[Check]:
        """Whether the parent answers."""
        try:
            self._ask("capacity")
        except FiberError as error:
            return [Check(name="parent", ok=False, detail=str(error))]
        return [Check(name="parent", ok=True, detail="it answers")]

    def close(self) -> None:
        """End the events; the parent ends what this process had started when that has ended."""
        self._closed = True
        self._told.put(None)
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
        self._told.put(codec.loads(message.body))

    def _lost(self) -> None:
        # on the handler thread, which must not wait for a connection
        if self._submitted and not self._closed:
            threading.Thread(target=self._resume, name="fiber-relay", daemon=True).start()

    def _resume(self) -> None:
        try:
            for told in self._ask("resume"):
                self._told.put(told)
        except FiberError as error:
            if not self._closed:
                self._told.put(error)
