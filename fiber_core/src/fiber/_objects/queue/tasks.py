"""A queue of tasks at its owner: who waits until all are done, and what tells that they are.

Whoever joins waits for what was put before, by anybody, and puts are on their way for a moment. So
every other process that holds the queue is asked to say when all that it put is sent, which arrives
behind that; then the count is true for the one that joins.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.protocol import Op, Word
from fiber._objects.queue import progress
from fiber._objects.queue.channel import Channel
from fiber._objects.queue.requests import Instructions
from fiber._objects.queue.task_state import TaskLane
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


@values.define(eq=False)
class _Joiner:
    """Somebody who waits until all tasks are done."""

    #: lets it go on; with the lock held
    release: Callable[[], Any]
    #: the process that it is in, None for the owner's
    peer: Peer | None
    #: processes that have not said yet that all they put is sent
    untold: set[Any]


class TaskChannel(Channel):
    """A queue of tasks."""

    def __init__(self, store: Store, maxsize: int = 0) -> None:
        super().__init__(store, Kind.TASKS, maxsize)
        self._tasks = TaskLane(maxsize=maxsize)
        self.lanes = [self._tasks]
        self._joiners: dict[int, _Joiner] = {}
        self._numbers = itertools.count(1)

    # -- for threads here

    def finish(self, source: object) -> bool:
        """A task was done; False where all were done already."""
        with self.lock:
            return self._finish(None)

    def join(self) -> None:
        """Wait until all tasks are done."""
        gate = threading.Lock()
        gate.acquire()
        with self.lock:
            number = self._join(None, gate.release)
        try:
            gate.acquire()
        finally:
            with self.lock:
                self._joiners.pop(number, None)

    # -- inside; the lock is held

    def carry(self, lane: int, instructions: Instructions) -> None:
        """See :class:`Channel`; losing a reader may finish tasks, too."""
        super().carry(lane, instructions)
        self._let_go_on()

    def _finish(self, reader: Peer | None) -> bool:
        out = self._tasks.finish(reader)
        if out is None:
            return False
        self.carry(0, out)
        return True

    def _join(self, peer: Peer | None, release: Callable[[], Any]) -> int:
        number = next(self._numbers)
        untold = {one for one in self._references.peers(0) if one is not peer}
        self._joiners[number] = _Joiner(release, peer, untold)
        for one in untold:
            if isinstance(one, Peer):
                word = protocol.TELL.pack(Word.TELL, 0, number)
                one.send(Frame.CAST, self.target, 0, [word])
        self._let_go_on()
        return number

    def _let_go_on(self) -> None:
        """Let those go on for whom all is done."""
        if self._tasks.unfinished:
            return
        for number, joiner in list(self._joiners.items()):
            if not joiner.untold:
                del self._joiners[number]
                joiner.release()

    # -- other processes

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        body = message.body
        if op == Op.TASKS_DONE:
            _, lane, upto, total = protocol.read(protocol.TASKS_DONE, body)
            self._check(lane)
            self.carry(0, self._tasks.finish_all(peer, upto, total))
        elif op == Op.TASK_DONE:
            counted = protocol.COUNTED.pack(self._finish(peer))
            peer.send(Frame.REPLY, self.target, message.id, [counted])
        elif op == Op.JOIN:
            number = message.id

            def release() -> None:
                peer.send(Frame.REPLY, self.target, number, [])

            self._join(peer, release)
        elif op == Op.TOLD:
            joiner = self._joiners.get(protocol.read(protocol.TOLD, body)[2])
            if joiner is not None:
                joiner.untold.discard(peer)
                self._let_go_on()
        elif op == Op.ENDING:
            self._tasks.end(peer)
        else:
            super()._answer(peer, message, op)

    @staticmethod
    def _check(lane: int) -> None:
        if lane:
            msg = f"a message names lane {lane} of a queue"
            raise WireError(msg)

    # -- references

    def on_peer_lost(self, peer: Peer) -> None:
        """Another process is gone; unless it has ended by itself its tasks come back."""
        with self.lock:
            self._tasks.die(peer)
        super().on_peer_lost(peer)

    def _arrive(self, peer: Peer, end: int, slot: int, mark: bytes, page: bytes) -> bool:
        seen = super()._arrive(peer, end, slot, mark, page)
        if seen:
            words = self._store.page(peer, page, mark)
            if words is not None:
                self._tasks.watch(peer, progress.tasks_of(words, slot))
        return seen

    def _leave(self, peer: Peer, end: int) -> None:
        for number, joiner in list(self._joiners.items()):
            joiner.untold.discard(peer)
            if joiner.peer is peer:
                del self._joiners[number]
        super()._leave(peer, end)
