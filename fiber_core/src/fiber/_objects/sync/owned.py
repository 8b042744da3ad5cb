"""Something that is waited for at its owner: requests of its threads and of other processes."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Protocol

from fiber._base import values
from fiber._objects.address import Kind
from fiber._objects.owned import Shared
from fiber._objects.protocol import read
from fiber._objects.sync import protocol
from fiber._objects.sync.protocol import SAY, Op, Word
from fiber._objects.sync.wait_queue import Answer, Answers, Request
from fiber._objects.waiting import pass_gate
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fiber._objects.store import Store


class Machine(Protocol):
    """What the state machines of all kinds have."""

    def cancel(self, party: Hashable, number: int, *, expired: bool = False) -> Answers:
        """A request is to be answered now, nothing where it was; expired where its time is up."""

    def leave(self, party: Hashable, held: int) -> Answers:
        """A process ends normally, with so many permits."""

    def lose(self, party: Hashable, who: str) -> Answers:
        """A process died."""


@values.define(eq=False)
class Waiter(Request):
    """A thread of the owner that waits."""

    gate: threading.Lock = values.field(factory=threading.Lock)
    answer: Answer | None = None

    def __attrs_post_init__(self) -> None:
        self.gate.acquire()


_numbers = itertools.count(1)


class Waited(Shared):
    """What every kind has that is waited for; a subclass knows what its kind is for."""

    def __init__(self, store: Store, kind: Kind, machine: Machine) -> None:
        super().__init__(store, kind)
        self._machine = machine
        # processes that have everything that they were told
        self._arrived: set[Peer] = set()

    @property
    def home(self) -> str:
        """Identity of the owner where that is another process."""
        return ""

    # -- for threads here

    def ask(
        self,
        event: Callable[[Request], Answers],
        timeout: float | None = None,
        undo: Callable[[Answer], Answers] | None = None,
        after: Callable[[], object] | None = None,
    ) -> Answer:
        """Have the machine answer a request; call ``after``; wait for the answer.

        After ``timeout`` seconds it is cancelled. An interrupt takes nothing with it: ``undo`` is
        called with the lock held for an answer that nobody will see.
        """
        waiter = Waiter(None, next(_numbers))
        try:
            with self.lock:
                self.carry(event(waiter))
            if after is not None:
                after()
            if waiter.answer is None and not pass_gate(waiter.gate, timeout):
                with self.lock:
                    self._cancel(waiter, expired=True)
                if waiter.answer is None:
                    # it comes when the barrier's action was run
                    pass_gate(waiter.gate, None)
        except BaseException:
            with self.lock:
                if waiter.answer is None:
                    self._cancel(waiter)
                elif undo is not None:
                    self.carry(undo(waiter.answer))
            raise
        assert waiter.answer is not None
        return waiter.answer

    def carry(self, answers: Answers) -> None:
        """Tell those who wait; with the lock held."""
        for one in answers:
            request = one.request
            if isinstance(request, Waiter):
                request.answer = one
                request.gate.release()
            elif isinstance(request.party, Peer):
                told = protocol.answer(request.number, one.verdict, one.value, one.text)
                request.party.send(Frame.CAST, self.target, 0, [told])

    def _cancel(self, waiter: Waiter, *, expired: bool = False) -> None:
        if waiter.answer is None:
            self.carry(self._machine.cancel(None, waiter.number, expired=expired))

    # -- for subclasses; called with the lock held

    def _asked(self, op: int, request: Request, argument: int) -> Answers | None:
        """Another process wants something; None where it wants what there is not."""
        return None

    def _tell(self, peer: object, word: Word) -> None:
        if isinstance(peer, Peer):
            peer.send(Frame.CAST, self.target, 0, [protocol.ANSWER.pack(word, 0, 0, 0)])

    # -- other processes

    def on_peer_lost(self, peer: Peer) -> None:
        """Another process is gone; unless it has said that it ends, it died."""
        with self.lock:
            self._arrived.discard(peer)
            # others than holders are no matter of ours
            if peer in self._references.peers(0):
                self.carry(self._machine.lose(peer, _describe(peer)))
        super().on_peer_lost(peer)

    def _leave(self, peer: Peer, end: int) -> None:
        if self._store.is_closing:
            # it says no more that everything has come
            self._store.drained()

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        if op == Op.ARRIVED:
            self._arrived.add(peer)
            self._store.drained()
            return
        _, number, argument = read(SAY, message.body)
        if op == Op.CANCEL:
            self.carry(self._machine.cancel(peer, number, expired=bool(argument)))
        elif op == Op.ENDING:
            self.carry(self._machine.leave(peer, max(0, argument)))
        else:
            answers = self._asked(op, Request(peer, number), argument)
            if answers is None:
                super()._answer(peer, message, op)
            else:
                self.carry(answers)

    # -- the end of the owner

    def hurry(self) -> None:
        """Have others say when they have all that they were told."""
        with self.lock:
            for peer in self._references.peers(0):
                self._tell(peer, Word.ARRIVED)

    def is_drained(self) -> bool:
        """True where what others were told has come."""
        with self.lock:
            return self._references.peers(0) <= self._arrived


def _describe(peer: Peer) -> str:
    hello = peer.hello
    return "a process" if hello is None else f"process {hello.pid} on {hello.host}"
