"""Owner side of a lock, semaphore, condition, event or barrier.

Apart from the kinds, which each have a module of their own, as what they have in common.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fiber._base import values
from fiber._base.threads import TURN
from fiber._objects.address import Kind
from fiber._objects.memory.heap import Allocation, heap_of
from fiber._objects.owned_object import OwnedObject
from fiber._objects.protocol import read
from fiber._objects.sync import protocol
from fiber._objects.sync.protocol import REQUEST, Answer, Answers, Notice, Op, Request, Wait
from fiber._objects.waiting import wait_for_wakeup
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Hashable

    from fiber._objects.store import Store


#: where shared memory of an object begins in its arena, and the parts of the arena's location
Place: TypeAlias = tuple[int, tuple[Any, ...]]


class SyncState(Protocol):
    """The events that the state machine of each kind takes."""

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Answer a waiting request now; ``expired`` where its timeout has passed."""

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally, holding so many permits."""

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died."""


@values.define(eq=False)
class Waiter(Request):
    """The request of a thread of the owner, which waits until ``wakeup`` is released."""

    wakeup: threading.Lock = values.field(factory=threading.Lock)
    answer: Answer | None = None

    def __attrs_post_init__(self) -> None:
        self.wakeup.acquire()


_numbers = itertools.count(1)


class OwnedWaitable(OwnedObject):
    """Base of the owner's sides: runs requests on the state machine and delivers its answers.

    ``lock`` of the object guards the state machine.
    """

    def __init__(self, store: Store, kind: Kind, state: SyncState) -> None:
        super().__init__(store, kind)
        self._state = state
        #: the state in memory that the processes of this host share, if it is there
        self.shared: Any = None
        self._allocation: Allocation | None = None
        # the thread that waits in shared memory on behalf of other processes
        self._deputy: threading.Thread | None = None
        # processes that have confirmed all messages
        self._confirmed: set[Peer] = set()

    @property
    def owner_ident(self) -> str:
        """Identity of the owner; empty where that is this process."""
        return ""

    # -- state in memory that the processes of this host share

    @property
    def where(self) -> Place | None:
        """Place at which other processes find the state; None where it is not in shared memory."""
        if self._allocation is None:
            return None
        location = self._allocation.arena.location
        return self._allocation.begin, (location.name, location.pid, location.size, location.tag)

    def map(self, where: Place | None) -> Any:
        """The state in shared memory; None where it is not there."""
        return self.shared

    def _allocate(self, size: int) -> tuple[mmap.mmap, int]:
        """Memory for the state, and where it begins there.

        Raises:
            OSError: there is no room for it.
        """
        self._allocation = heap_of(self._store).allocate(size)
        return self._allocation.arena.memory, self._allocation.begin

    def _on_end_closed(self, end: int) -> None:
        if self._allocation is not None:
            heap_of(self._store).free(self._allocation)

    def _wait_for_others(self, wait: Wait) -> None:
        """With the lock held: have a thread wait in shared memory while processes without it do.

        Args:
            wait: what it returns is called with the lock held.
        """
        if self._deputy is None:
            self._deputy = threading.Thread(
                target=self._stand_in, args=(wait,), name="fiber-waiter", daemon=True
            )
            self._deputy.start()

    def _stand_in(self, wait: Wait) -> None:
        while True:
            answers = wait(TURN)
            with self.lock:
                self.deliver_answers(answers())
                if not self._state.waiting or self._store.is_closing:
                    self._deputy = None
                    return

    # -- for threads of this process

    def request(
        self,
        event: Callable[[Request], Answers],
        timeout: float | None = None,
        rollback: Callable[[Answer], Answers] | None = None,
        before_wait: Callable[[], object] | None = None,
    ) -> Answer:
        """Make a request of this thread and wait for its answer.

        Args:
            event: the state machine's method; called with the lock held.
            timeout: seconds until the request is cancelled; None for any number.
            rollback: the event that undoes an answer, for one that came while the thread was
                interrupted; called with the lock held.
            before_wait: called after the event, without the lock.
        """
        waiter = Waiter(None, next(_numbers))
        try:
            with self.lock:
                self.deliver_answers(event(waiter))
            if before_wait is not None:
                before_wait()
            if waiter.answer is None and not wait_for_wakeup(waiter.wakeup, timeout):
                with self.lock:
                    self._cancel(waiter, expired=True)
                if waiter.answer is None:
                    # the answer comes when the barrier's action has ended
                    wait_for_wakeup(waiter.wakeup, None)
        except BaseException:
            with self.lock:
                if waiter.answer is None:
                    self._cancel(waiter)
                elif rollback is not None:
                    self.deliver_answers(rollback(waiter.answer))
            raise
        assert waiter.answer is not None
        return waiter.answer

    def deliver_answers(self, answers: Answers) -> None:
        """Wake threads of this process, and send to others; with the lock held."""
        for one in answers:
            request = one.request
            if isinstance(request, Waiter):
                request.answer = one
                request.wakeup.release()
            elif isinstance(request.process, Peer):
                reply = protocol.answer(request.number, one.status, one.value, one.text)
                request.process.send(Frame.CAST, self.target, 0, [reply])

    def _cancel(self, waiter: Waiter, *, expired: bool = False) -> None:
        if waiter.answer is None:
            self.deliver_answers(self._state.cancel(None, waiter.number, expired=expired))

    # -- for subclasses; called with the lock held

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        """Run a request of another process; None for an operation that the kind does not have."""
        return None

    def _send_notice(self, peer: object, notice: Notice) -> None:
        if isinstance(peer, Peer):
            peer.send(Frame.CAST, self.target, 0, [protocol.ANSWER.pack(notice, 0, 0, 0)])

    # -- other processes

    def on_peer_lost(self, peer: Peer) -> None:
        """Note that another process died; after its ``ENDING`` it holds nothing any more."""
        with self.lock:
            self._confirmed.discard(peer)
            # a peer may have no handle of this object
            if peer in self._references.peers(0):
                self.deliver_answers(self._state.process_died(peer, _describe(peer)))
        super().on_peer_lost(peer)

    def _on_detach(self, peer: Peer, end: int) -> None:
        if self._store.is_closing:
            # it need not confirm any more
            self._store.drained()

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        if op == Op.CONFIRMED:
            self._confirmed.add(peer)
            self._store.drained()
            return
        _, number, argument = read(REQUEST, message.body)
        if op == Op.CANCEL:
            self.deliver_answers(self._state.cancel(peer, number, expired=bool(argument)))
        elif op == Op.ENDING:
            self.deliver_answers(self._state.process_exited(peer, max(0, argument)))
        else:
            answers = self._handle_request(op, Request(peer, number), argument)
            if answers is None:
                super()._on_request(peer, message, op)
            else:
                self.deliver_answers(answers)

    # -- the exit of the owner

    def request_flush(self) -> None:
        """Ask all holders to confirm the messages sent so far."""
        with self.lock:
            for peer in self._references.peers(0):
                self._send_notice(peer, Notice.CONFIRM)

    def is_drained(self) -> bool:
        """True where all holders have confirmed."""
        with self.lock:
            return self._references.peers(0) <= self._confirmed


def _describe(peer: Peer) -> str:
    hello = peer.hello
    return "a process" if hello is None else f"process {hello.pid} on {hello.host}"
