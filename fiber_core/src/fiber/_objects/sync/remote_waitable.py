"""Side of processes that do not own a lock, semaphore, condition, event or barrier.

Apart from the kinds, which each have a module of their own, as what they have in common.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._objects.address import Address
from fiber._objects.memory.backing import Location, map_arena
from fiber._objects.owner_connection import Owner, without_traceback
from fiber._objects.remote_object import RemoteObject
from fiber._objects.sync import protocol
from fiber._objects.sync.owned_waitable import Place
from fiber._objects.sync.protocol import REQUEST, Notice, Op, Status
from fiber._objects.waiting import wait_for_wakeup
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    import mmap

    from fiber._objects.store import Store
    from fiber._objects.sync.monitor import SharedState
    from fiber._wire.reading import Action


@values.frozen
class Reply:
    """Answer of the owner to a request."""

    status: Status
    value: int = 0
    text: str = ""


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
        client = self._owner.client

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
        if sent.reads and self._owner.client is not None:
            self._owner.client.wake()

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
