"""Threads that run the methods of managed objects, in the objects' process."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from fiber._objects import protocol
from fiber._objects.managed import calls
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store

log = logging.getLogger("fiber")

_Reference: TypeAlias = tuple[str, tuple[str, ...], int, int]
# None for this very process
_Key: TypeAlias = tuple[Peer | None, int]


class _CallerThread:
    """Queue of one thread; None in it ends the thread."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        #: True once a call may have bound something to the thread, such as a lock that it holds
        self.is_bound = False


class CallerThreads:
    """Threads that run calls, one for each caller: calls of one caller run in order, others in parallel.

    A caller is a thread of any process, so that locks which know their holder by its thread work;
    or the asynchronous calls of one process to one object. The thread ends when the caller's
    process announces its end or is lost, and after ``Timing.idle_thread`` without calls unless
    it is bound.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._idle = store.timing.idle_thread
        self._lock = threading.Lock()
        self._threads: dict[_Key, _CallerThread] = {}
        # references in answers that their receivers have not unpickled yet
        self._answers: dict[Peer, dict[int, list[_Reference]]] = {}
        # calls that are not answered yet, and those of them that are not waited for any more
        self._unanswered: set[_Key] = set()
        self._abandoned: set[_Key] = set()
        # names of the auth domains whose processes have threads here
        self._auth_domains: set[str] = set()
        #: number by which other processes address it
        self.target = store.node.new_target()
        store.node.endpoint.serve(self.target, self)

    def submit(
        self, peer: Peer | None, number: int, task: Callable[[], Any], *, thread_neutral: bool
    ) -> None:
        """Run a call on its caller's thread.

        Args:
            peer: the caller's process; None for this one.
            number: the process's number for the caller.
            task: makes the call; raises nothing.
            thread_neutral: True where the call has the same effect on any thread.

        Raises:
            RuntimeError: no thread can be started.
        """
        if (
            peer is not None
            and peer.auth_domain is not None
            and peer.auth_domain not in self._auth_domains
        ):
            self._auth_domains.add(peer.auth_domain)
            self._store.auth_domains.serve(peer.auth_domain, self.target, self)
        key = peer, number
        with self._lock:
            thread = self._threads.get(key)
            if thread is None:
                thread = _CallerThread()
                process = self._store.ident if peer is None else peer.ident
                name = f"fiber-calls-{process}-{number}"
                args = (key, thread)
                threading.Thread(target=self._run, name=name, args=args, daemon=True).start()
                self._threads[key] = thread
            thread.is_bound = thread.is_bound or not thread_neutral
            thread.tasks.put(task)

    def add_call(self, peer: Peer, number: int) -> None:
        """Note a call that :meth:`reply` will answer."""
        with self._lock:
            self._unanswered.add((peer, number))

    def abandon(self, peer: Peer, number: int) -> None:
        """Note that a call is not waited for any more."""
        with self._lock:
            if (peer, number) in self._unanswered:
                self._abandoned.add((peer, number))

    def is_awaited(self, peer: Peer, number: int) -> bool:
        """True while a call is waited for."""
        return peer.alive and (peer, number) not in self._abandoned

    def reply(self, peer: Peer, target: int, number: int, outcome: calls.Outcome) -> None:
        """Answer a call."""
        with self._lock:
            self._unanswered.discard((peer, number))
            self._abandoned.discard((peer, number))
        references = calls.references(outcome[1])
        if references:
            with self._lock:
                self._answers.setdefault(peer, {})[number] = list(references)
            if not peer.alive:
                self._void(peer)
        peer.send(Frame.REPLY, target, number, calls.answer(outcome, self.target))

    def end(self, peer: Peer, number: int) -> None:
        """End the thread of a caller after the calls that it has."""
        with self._lock:
            self._end((peer, number))

    def end_soon(self, number: int) -> None:
        """End the thread of a caller of this process; callable from finalizers."""
        self._store.call_soon(functools.partial(self._end_local, number))

    def _end_local(self, number: int) -> None:
        with self._lock:
            self._end((None, number))

    def close(self) -> None:
        """Accept no more messages."""
        self._store.node.endpoint.withdraw(self.target)
        if self._auth_domains:
            self._store.auth_domains.withdraw(self.target)

    @property
    def threads(self) -> int:
        """Number of threads."""
        with self._lock:
            return len(self._threads)

    # -- the service

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take one message of another process."""
        op, number = protocol.read(calls.NUMBERED, message.body)
        if op not in (calls.ENDED, calls.LOADED):
            msg = f"the threads of a manager are asked for operation {op}, which they do not have"
            raise WireError(msg)
        with self._lock:
            if op == calls.ENDED:
                self._end((peer, number))
            else:
                self._answers.get(peer, {}).pop(number, None)

    def on_peer_lost(self, peer: Peer) -> None:
        """End the threads of a lost process after the calls that they have."""
        with self._lock:
            for key in [key for key in self._threads if key[0] is peer]:
                self._end(key)
        self._void(peer)

    def _end(self, key: _Key) -> None:
        thread = self._threads.pop(key, None)
        if thread is not None:
            thread.tasks.put(None)

    def _void(self, peer: Peer) -> None:
        with self._lock:
            answers = self._answers.pop(peer, {})
        for references in answers.values():
            self._store.void_references(references)

    # -- the threads

    def _run(self, key: _Key, thread: _CallerThread) -> None:
        while True:
            try:
                task = thread.tasks.get(timeout=None if thread.is_bound else self._idle)
            except queue.Empty:
                if self._ends_idle(key, thread):
                    return
                continue
            if task is None:
                return
            try:
                task()
            except Exception:
                log.exception("fiber: a call of a managed object was not answered")
            # its references must not live until the next call
            del task

    def _ends_idle(self, key: _Key, thread: _CallerThread) -> bool:
        """True where an idle thread may end: it is not bound and no call came meanwhile."""
        with self._lock:
            if thread.is_bound or not thread.tasks.empty():
                return False
            if self._threads.get(key) is thread:
                del self._threads[key]
            return True
