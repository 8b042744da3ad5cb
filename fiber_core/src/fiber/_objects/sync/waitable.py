"""What the kinds of locks, semaphores, conditions, events and barriers have in common: both of their sides.

:class:`OwnedWaitable` is the side of the owner, which runs requests on a state machine and delivers its
answers; :class:`RemoteWaitable` that of all other processes, which send requests and wait for the answers.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fiber._base import values
from fiber._base.threads import TURN, wait_for_wakeup
from fiber._objects.address import Address, Kind
from fiber._objects.memory.backing import Location, map_arena
from fiber._objects.memory.heap import Allocation, heap_of
from fiber._objects.owned_object import OwnedObject
from fiber._objects.protocol import read
from fiber._objects.remote_object import Owner, RemoteObject, without_traceback
from fiber._objects.sync import protocol
from fiber._objects.sync.protocol import REQUEST, Answer, Answers, Notice, Op, Request, Status, Wait
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Hashable

    from fiber._objects.store import Store
    from fiber._objects.sync.monitor import SharedState
    from fiber._wire.reading import Action


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
        op: Op,
        argument: int = 0,
        timeout: float | None = None,
        *,
        rollback: Callable[[Answer], object] | None = None,
        before_wait: Callable[[], object] | None = None,
    ) -> Answer:
        """Make a request of this thread and wait for its answer.

        Args:
            op: the operation.
            argument: see :class:`~fiber._objects.sync.protocol.Op`.
            timeout: seconds until the request is cancelled; None for any number.
            rollback: called with an answer that came while the thread was interrupted; undoes it.
            before_wait: called after the operation, without the lock.
        """
        waiter = Waiter(None, next(_numbers))
        try:
            self._run(op, waiter, argument)
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
                    rollback = None
            if rollback is not None and waiter.answer is not None:
                rollback(waiter.answer)
            raise
        assert waiter.answer is not None
        return waiter.answer

    def send(self, op: Op, argument: int = 0) -> None:
        """Run an operation of this process that is not answered."""
        self._run(op, Request(None), argument)

    def _run(self, op: Op, request: Request, argument: int) -> None:
        with self.lock:
            answers = self._handle_request(op, request, argument)
            assert answers is not None, "each kind asks itself for operations that it has"
            self.deliver_answers(answers)

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
        """Run a request of any process; None for an operation that the kind does not have."""
        return None

    def _peer_died(self, peer: Peer) -> Answers:
        """A process that had a handle died."""
        return self._state.process_died(peer, describe(peer))

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
                self.deliver_answers(self._peer_died(peer))
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


def describe(peer: Peer) -> str:
    """A process, for people."""
    hello = peer.hello
    return "a process" if hello is None else f"process {hello.pid} on {hello.host}"


@values.frozen
class Reply:
    """Answer of the owner to a request."""

    status: Status
    value: int = 0
    text: str = ""


class Waitable:
    """Base of what users call on both sides of a kind: operations that are requests, or are sent only."""

    request: Callable[..., Answer | Reply]
    send: Callable[..., None]


class _SentRequest:
    """A request that was not answered yet; its thread waits until ``wakeup`` is released."""

    __slots__ = ("is_abandoned", "number", "on_reply", "reads", "reply", "rollback", "wakeup")

    def __init__(
        self,
        number: int,
        on_reply: Callable[[int, Reply], None] | None,
        rollback: Callable[[Reply], None] | None,
    ) -> None:
        self.number = number
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self.reply: Reply | None = None
        self.on_reply = on_reply
        self.rollback = rollback
        #: True once its thread waits no more
        self.is_abandoned = False
        #: True while its thread reads messages, or tries to
        self.reads = False


class RemoteWaitable(RemoteObject):
    """Base of the other processes' sides: sends requests and waits for their answers.

    ``_guard`` guards the state; threads and the handler thread hold it briefly.
    """

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self._guard = threading.Lock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, _SentRequest] = {}
        self._error: BaseException | None = None
        # the state in shared memory, once it is mapped
        self._shared: Any = None

    @property
    def owner_ident(self) -> str:
        """Identity of the owner; empty where that is this process."""
        return self._owner.ident

    # -- state in memory that the processes of the owner's host share

    def map(self, where: Place | None) -> Any:
        """The state in shared memory; None where this process does not map that."""
        with self._lock:
            if self._shared is None and where is not None and self._error is None:
                begin, location = where
                memory = None
                if self.is_same_host:
                    memory = map_arena(Location(*location), lambda: self._store.node.directory)
                if memory is not None:
                    self._shared = self._share(memory, begin)
                    # it may have been lost meanwhile, when there was nothing to cut off
                    self._cut_off_lost()
            return self._shared

    def _share(self, memory: mmap.mmap, begin: int) -> SharedState:
        """For subclasses: the state that begins there."""
        raise NotImplementedError

    def _lost_error(self) -> BaseException:
        lost = self.error_to_raise(self._error)
        lost.__cause__ = lost.__cause__ or self._error
        return lost

    # -- the user's threads

    def request(
        self,
        op: Op,
        argument: int = 0,
        timeout: float | None = None,
        *,
        on_reply: Callable[[int, Reply], None] | None = None,
        rollback: Callable[[Reply], None] | None = None,
        before_wait: Callable[[], object] | None = None,
    ) -> Reply:
        """Send a request and wait for its answer.

        Args:
            op: the operation.
            argument: see :class:`~fiber._objects.sync.protocol.Op`.
            timeout: seconds until the request is cancelled; None for any number.
            on_reply: called with the request's number and the answer, with the guard held; perhaps twice,
                where a signal's handler interrupted it.
            rollback: called on the owner's executor with an answer that came while the thread was
                interrupted; undoes it.
            before_wait: called once the request is sent.

        Raises:
            PeerLostError: the owner is lost.
        """
        number = next(self._numbers)
        sent = _SentRequest(number, on_reply, rollback)
        read = functools.partial(self._read, sent)
        try:
            with self._guard:
                if self._error is None:
                    self._requests[number] = sent
            if self._error is None:
                self.send(op, argument, number)
                if before_wait is not None:
                    before_wait()
                if not wait_for_wakeup(sent.wakeup, timeout, read):
                    self.send(Op.CANCEL, 1, number)
                    wait_for_wakeup(sent.wakeup, None, read)
        except BaseException:
            self._abandon(number, sent)
            raise
        if sent.reply is None:
            raise self.error_to_raise(self._error) from self._error
        return sent.reply

    def send(self, op: Op, argument: int = 0, number: int = 0) -> None:
        """Send an operation; with a number it is answered.

        Raises:
            PeerLostError: the owner is lost.
        """
        if self._error is not None:
            raise self.error_to_raise(self._error) from self._error
        try:
            self.cast([REQUEST.pack(op, number, argument)])
        except PeerLostError as error:
            self.fail(without_traceback(error))
            raise self.error_to_raise(error) from error

    def error_to_raise(self, error: BaseException | None) -> PeerLostError:
        """The error for the user when the owner, or the object at it, is lost."""
        return self.loss_error(error or PeerLostError())

    def _abandon(self, number: int, sent: _SentRequest) -> None:
        with self._guard:
            sent.is_abandoned = True
            reply = sent.reply
            if self._error is not None:
                return
        if reply is None:
            self.submit(functools.partial(self.send, Op.CANCEL, 0, number))
        elif sent.rollback is not None:
            self.submit(functools.partial(sent.rollback, reply))

    def _read(self, sent: _SentRequest, seconds: float) -> bool | None:
        """Read the owner's messages until there is an answer; None where others read them."""
        client = self.client

        def is_over() -> bool:
            return sent.reply is not None or self._error is not None

        def look(message: Message) -> Action | None:
            if message.kind is not Frame.CAST or message.target != self.target:
                return None
            if not message.body or message.body[0] != Notice.ANSWER:
                return None
            number, status, value, text = protocol.parse_answer(message.body)
            if number != sent.number:
                return None
            return functools.partial(self._settle, number, Reply(status, value, text))

        sent.reads = True
        try:
            return is_over() if client is not None and client.wait(look, is_over, seconds) else None
        finally:
            sent.reads = False

    # -- messages of the owner, and its loss; on the handler thread

    def on_notice(self, message: Message) -> None:
        """Take one message of the owner."""
        notice = message.body[0] if len(message.body) else 0
        if notice == Notice.ANSWER:
            self._on_answer(message)
        elif notice == Notice.CONFIRM:
            self.submit(functools.partial(self.send, Op.CONFIRMED))
        else:
            self._on_own_notice(notice)

    def _on_answer(self, message: Message) -> None:
        number, status, value, text = protocol.parse_answer(message.body)
        sent = self._settle(number, Reply(status, value, text))
        if sent is not None:
            self._wake(sent)

    def _settle(self, number: int, reply: Reply) -> _SentRequest | None:
        """Take a reply, once more where that was interrupted; the request, if it was not answered yet."""
        with self._guard:
            sent = self._requests.get(number)
            if sent is None:
                return None
            if sent.on_reply is not None:
                sent.on_reply(number, reply)
            sent.reply = reply
            if sent.is_abandoned and sent.rollback is not None:
                self.submit(functools.partial(sent.rollback, reply))
            del self._requests[number]
            return sent

    def _wake(self, sent: _SentRequest) -> None:
        sent.wakeup.release()
        if sent.reads and self.client is not None:
            self.client.wake()

    def fail(self, error: BaseException) -> None:
        """The owner, or the object at it, is lost: wake all waiting threads."""
        with self._guard:
            if self._error is None:
                self._error = error
            waiting = list(self._requests.values())
            self._requests.clear()
        for sent in waiting:
            self._wake(sent)
        self._cut_off_lost()

    def _cut_off_lost(self) -> None:
        if self._error is not None and self._shared is not None:
            self._shared.cut_off(self._lost_error)

    # -- for subclasses

    def _on_own_notice(self, notice: int) -> None:
        """On the handler thread: take a notice that only this kind has."""
