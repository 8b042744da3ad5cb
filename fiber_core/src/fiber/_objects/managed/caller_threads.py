"""The threads that methods of managed objects run on, in the process that the objects live in."""

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

#: seconds after which a thread that is not needed to be the same one ends
IDLE = 30.0

log = logging.getLogger("fiber")

_Ticket: TypeAlias = tuple[str, tuple[str, ...], int, int]
# None for this very process
_Key: TypeAlias = tuple[Peer | None, int]


class _Strand:
    """One thread and what it has to do."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        #: True once it made a call that may have left something with the thread, such as a lock
        self.is_bound = False


class Strands:
    """Runs calls: those of one strand in order and on one thread, different strands in parallel.

    A strand is a thread of another process, so that locks which know their holder by its thread
    work; or the asynchronous calls of another process to one object. Its thread ends when the other
    process says that nothing will follow, or is gone, and after a time without calls where none of
    them can have left anything with the thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._strands: dict[_Key, _Strand] = {}
        # tickets in answers that their receivers have not unpickled yet
        self._answers: dict[Peer, dict[int, list[_Ticket]]] = {}
        # calls that are not answered yet, and those of them that nobody waits for any more
        self._unanswered: set[_Key] = set()
        self._abandoned: set[_Key] = set()
        # of other programs whose processes have strands here
        self._realms: set[str] = set()
        #: number by which other processes address it
        self.target = store.node.new_target()
        store.node.endpoint.serve(self.target, self)

    def submit(
        self, peer: Peer | None, number: int, task: Callable[[], Any], *, leaves_nothing: bool
    ) -> None:
        """Have a call made.

        Args:
            peer: the process that makes it; None for this one.
            number: its number for the strand.
            task: makes the call; raises nothing.
            leaves_nothing: True where the call means the same on any thread.

        Raises:
            RuntimeError: no thread can be started.
        """
        if peer is not None and peer.realm is not None and peer.realm not in self._realms:
            self._realms.add(peer.realm)
            self._store.realms.serve(peer.realm, self.target, self)
        key = peer, number
        with self._lock:
            strand = self._strands.get(key)
            if strand is None:
                strand = _Strand()
                caller = self._store.ident if peer is None else peer.ident
                name = f"fiber-calls-{caller}-{number}"
                args = (key, strand)
                threading.Thread(target=self._run, name=name, args=args, daemon=True).start()
                self._strands[key] = strand
            strand.is_bound = strand.is_bound or not leaves_nothing
            strand.tasks.put(task)

    def begun(self, peer: Peer, number: int) -> None:
        """A call came, which :meth:`reply` answers."""
        with self._lock:
            self._unanswered.add((peer, number))

    def abandon(self, peer: Peer, number: int) -> None:
        """Nobody waits for a call any more."""
        with self._lock:
            if (peer, number) in self._unanswered:
                self._abandoned.add((peer, number))

    def is_awaited(self, peer: Peer, number: int) -> bool:
        """True while somebody waits for a call."""
        return peer.alive and (peer, number) not in self._abandoned

    def reply(self, peer: Peer, target: int, number: int, outcome: calls.Outcome) -> None:
        """Answer a call."""
        with self._lock:
            self._unanswered.discard((peer, number))
            self._abandoned.discard((peer, number))
        tickets = calls.tickets(outcome[1])
        if tickets:
            with self._lock:
                self._answers.setdefault(peer, {})[number] = list(tickets)
            if not peer.alive:
                self._void(peer)
        peer.send(Frame.REPLY, target, number, calls.answer(outcome, self.target))

    def end_soon(self, number: int) -> None:
        """No call of a strand of this process will follow; callable from finalizers."""
        self._store.call_soon(functools.partial(self._end_here, number))

    def _end_here(self, number: int) -> None:
        with self._lock:
            self._end((None, number))

    def close(self) -> None:
        """Serve nobody any more."""
        self._store.node.endpoint.withdraw(self.target)
        if self._realms:
            self._store.realms.withdraw(self.target)

    @property
    def threads(self) -> int:
        """How many there are."""
        with self._lock:
            return len(self._strands)

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
        """Another process is gone: what it asked for is still done, and nothing after that."""
        with self._lock:
            for key in [key for key in self._strands if key[0] is peer]:
                self._end(key)
        self._void(peer)

    def _end(self, key: _Key) -> None:
        strand = self._strands.pop(key, None)
        if strand is not None:
            strand.tasks.put(None)

    def _void(self, peer: Peer) -> None:
        with self._lock:
            answers = self._answers.pop(peer, {})
        for tickets in answers.values():
            self._store.void_all(tickets)

    # -- the threads

    def _run(self, key: _Key, strand: _Strand) -> None:
        while True:
            try:
                task = strand.tasks.get(timeout=None if strand.is_bound else IDLE)
            except queue.Empty:
                if self._is_over(key, strand):
                    return
                continue
            if task is None:
                return
            try:
                task()
            except Exception:
                log.exception("fiber: a call of a managed object was not answered")
            # what it refers to is not to live until the next one comes
            del task

    def _is_over(self, key: _Key, strand: _Strand) -> bool:
        """True where a thread has waited long enough, and nothing came meanwhile."""
        with self._lock:
            if strand.is_bound or not strand.tasks.empty():
                return False
            if self._strands.get(key) is strand:
                del self._strands[key]
            return True
