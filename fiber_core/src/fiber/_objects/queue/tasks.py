"""A queue of tasks at its owner: who waits until all are done, and what tells that they are.

Whoever joins waits for what was put before, by anybody, and puts are on their way for a moment. So
every other process that holds the queue is asked to say when all that it put is sent, which arrives
behind that; then the count is true for the one that joins.

A lane whose items are tasks: counted until they are done, and back when their reader dies; pure.

Handing an item out settles it with the lane. Here it stays in its reader's book until that reader
says that a task is done. Readers say so in the order in which they got them; who says so without
having any does it for somebody else, as the stdlib lets everybody.

A queue of tasks as another process than its owner's sees it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.protocol import Op, Word
from fiber._objects.queue import progress
from fiber._objects.queue.channel import Channel
from fiber._objects.queue.in_flight import Book, Placed, Progress
from fiber._objects.queue.messages import Item, Laden
from fiber._objects.queue.progress import Slot
from fiber._objects.queue.reader import RemoteSource
from fiber._objects.queue.remote_channel import RemoteChannel
from fiber._objects.queue.requests import Drop, Give, Instructions
from fiber._objects.queue.state import Lane
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError, WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store

_position = itemgetter(0)


def _none_done() -> int:
    return 0


class TaskBook(Book):
    """What one reader has, with the tasks among it that were handed out and are not done."""

    __slots__ = ("_done", "_seen", "has_died", "is_ending", "tasks")

    def __init__(self, progress: Callable[[], Progress] | None = None) -> None:
        if progress is None:
            super().__init__()
        else:
            super().__init__(progress)
        #: handed out and not done
        self.tasks: deque[Placed] = deque()
        #: True where the reader is gone without having ended by itself
        self.has_died = False
        #: True where the reader has said that it ends by itself
        self.is_ending = False
        # tasks done by its own account: what the owner can see of it, and what it was told
        self._seen: Callable[[], int] = _none_done
        self._done = 0

    def watch(self, seen: Callable[[], int]) -> None:
        """Have the reader's own account of what it has done, which may run ahead of its words."""
        self._seen = seen

    def settle(self, upto: int) -> None:
        """Items up to a number were handed out: they are tasks now."""
        handed = list(islice(self._unsettled, max(0, upto - self.settled)))
        super().settle(upto)
        self.tasks.extend(handed)

    def done(self, total: int) -> int:
        """The reader has done so many tasks by now; how many of them are news.

        Raises:
            WireError: it was not given so many.
        """
        if total > self.delivered:
            msg = f"a reader has done {total} tasks of {self.delivered}"
            raise WireError(msg)
        news = max(0, total - self._done)
        self._done += news
        return news

    def leave(self) -> int:
        """The reader is gone: what it has handed out are tasks; how many were done unheard of."""
        back = {position for position, _ in self.remains()}
        kept = [placed for placed in self._unsettled if placed[0] not in back]
        self.tasks.extend(kept)
        return self.done(min(self._seen(), self.delivered))


class TaskLane(Lane):
    """The state of a lane of tasks. Not thread-safe."""

    def __init__(self, *, maxsize: int = 0) -> None:
        super().__init__(maxsize=maxsize)
        #: tasks that came in and are not done
        self.unfinished = 0
        # handed out, and with nobody from whom they could come back: their references, if any
        self._loose: deque[Item | None] = deque()

    # -- tasks

    def finish(self, reader: Hashable) -> Instructions | None:
        """Somebody has done a task; None where all are done already."""
        if not self.unfinished:
            return None
        self.unfinished -= 1
        item = self._oldest(reader)
        # what is done is loaded no more
        return [] if item is None else [Drop([item])]

    def finish_all(self, reader: Hashable, upto: int, total: int) -> Instructions:
        """A reader was handed all up to a number, and has done so many tasks by now.

        Raises:
            WireError: it was not given so many.
        """
        out = self.settle(reader, upto)
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            for _ in range(book.done(total)):
                out += self.finish(reader) or []
        return out

    def end(self, reader: Hashable) -> None:
        """A reader ends by itself, having done with its tasks what it wanted."""
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            book.is_ending = True

    def die(self, reader: Hashable) -> None:
        """A reader is about to be lost: its tasks come back, unless it has said that it ends."""
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            book.has_died = not book.is_ending

    def watch(self, reader: Hashable, seen: Callable[[], int]) -> None:
        """Have a reader's own account of what it has done."""
        book = self._books.get(reader)
        if isinstance(book, TaskBook):
            book.watch(seen)

    def _oldest(self, reader: Hashable) -> Item | None:
        """Take a task off the books: of the reader, else of nobody, else the oldest of others."""
        books = [book for book in self._books.values() if isinstance(book, TaskBook) and book.tasks]
        own = self._books.get(reader)
        if isinstance(own, TaskBook) and own.tasks:
            return own.tasks.popleft()[1]
        if self._loose:
            return self._loose.popleft()
        if books:
            return min(books, key=lambda book: book.tasks[0][0]).tasks.popleft()[1]
        return None

    # -- what a lane does, with tasks

    def put_now(self, item: Item) -> bool:
        """See :class:`Lane`."""
        came = super().put_now(item)
        self.unfinished += came
        return came

    def take_now(self) -> Item | None:
        """See :class:`Lane`; the owner's own death ends the lane, so nothing could come back."""
        item = super().take_now()
        if item is not None:
            self._release(item)
        return item

    def untake(self, item: Item) -> Instructions:
        """See :class:`Lane`."""
        self._loose.remove(item if isinstance(item, Laden) else None)
        return super().untake(item)

    def open(self, reader: Hashable, progress: Callable[[], Progress] | None = None) -> None:
        """See :class:`Lane`."""
        if reader not in self._books:
            self._books[reader] = TaskBook(progress)

    def lose(self, reader: Hashable) -> Instructions:
        """See :class:`Lane`; the tasks of one that died come back, those of others are nobody's."""
        book = self._books.get(reader)
        out: Instructions = []
        if isinstance(book, TaskBook):
            for _ in range(book.leave()):
                out += self.finish(reader) or []
            if book.has_died:
                self._put_back(sorted(book.tasks, key=_position))
            else:
                for _, item in book.tasks:
                    self._release(item)
        return out + super().lose(reader)

    def advance(self) -> Instructions:
        """See :class:`Lane`."""
        out = super().advance()
        for one in out:
            if isinstance(one, Give) and one.request.reader is None:
                for item in one.items:
                    self._release(item)
        return out

    def _let_in(self, came: Iterable[Item]) -> None:
        tasks = list(came)
        self.unfinished += len(tasks)
        super()._let_in(tasks)

    def _release(self, item: Item) -> None:
        # only what holds references is of any use once it was loaded for good
        self._loose.append(item if isinstance(item, Laden) else None)


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


#: seconds after which the owner hears of what is done
_TELL = 0.002
#: tasks after which it hears at once
_MOST = 256
_WORD_TELL = bytes([Word.TELL])


class TaskSource(RemoteSource):
    """The reading side, which also notes what is done.

    The owner hears of it at once, or of many together where they follow each other closely.
    """

    def __init__(self, remote: RemoteTasks, lane: int, slot: Slot, session: int) -> None:
        super().__init__(remote, lane, slot, session)
        self._tasks = remote
        self._counting = threading.Lock()
        self._order = threading.Lock()
        # tasks that users here were given, have done, and that the owner was told to be done
        self._given = self._done = self._done_told = 0
        self._done_at = 0.0
        # True while a timer is going to tell
        self._done_soon = False
        # True once the slot is another reader's
        self._over = False

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item, see :class:`~fiber._objects.handle.Source`."""
        item = super().take(block, timeout)
        with self._counting:
            self._given += 1
        return item

    def finish(self) -> bool:
        """One of the tasks that were handed out here is done; False where there is none."""
        with self._counting:
            if self._done == self._given or self._over or self._error is not None:
                return False
            if self._tasks.is_lost:
                # whoever asks the owner hears of it, if not by us yet
                return False
            self._done += 1
            # whatever becomes of us: on this host it is not done again
            self.slot.did(self._done)
            crowd = time.monotonic() - self._done_at < _TELL
            now = not crowd or self._done - self._done_told >= _MOST
            later = not now and not self._done_soon
            self._done_soon = self._done_soon or later
        if now:
            self.tell_done()
        elif later:
            soon = functools.partial(self._remote.soon, self.tell_done)
            self._remote.call_later(_TELL, soon)
        return True

    def tell_done(self) -> None:
        """Say what is done; once it returns, whoever said it."""
        with self._order:
            self._tell_done()

    def _tell_done(self) -> None:
        with self._counting:
            self._done_soon = False
            total = self._done
            if total == self._done_told:
                return
            self._done_told = total
            self._done_at = time.monotonic()
        # what was put before a task was done is counted before it
        self._tasks.send_all()

        def message() -> bytes:
            self._told = self._returned
            return protocol.TASKS_DONE.pack(Op.TASKS_DONE, self._lane, self._told, total)

        self._send(message)

    def close(self) -> None:
        """Nobody here reads any more; what was not handed out goes back."""
        with self._counting:
            self._over = True
        self.tell_done()
        super().close()


class RemoteTasks(RemoteChannel):
    """Its lane, and what is done with the tasks in it."""

    _source_class = TaskSource

    def finish(self, source: object) -> bool:
        """A task was done; False where all were done already."""
        if isinstance(source, TaskSource) and source.finish():
            return True
        self._tell_all()
        answer = self._ask(protocol.TASK_DONE.pack(Op.TASK_DONE, 0))
        return bool(protocol.read(protocol.COUNTED, answer)[0])

    def join(self) -> None:
        """Wait until all tasks are done."""
        self._tell_all()
        self._ask(protocol.JOIN.pack(Op.JOIN, 0))

    def send_all(self) -> None:
        """Send all that was put."""
        for sink in list(self._sinks.values()):
            sink.send_all()

    def on_word(self, message: Message) -> None:
        """On the handler thread: the owner says something unasked."""
        if message.body[:1] == _WORD_TELL:
            number = protocol.read(protocol.TELL, message.body)[2]
            self.soon(functools.partial(self._tell, number))
        else:
            super().on_word(message)

    def ending(self, code: int) -> None:
        """This process ends by itself: only where it failed are its tasks to be done again."""
        if code:
            return
        # an owner that is gone has no use for it
        with contextlib.suppress(PeerLostError):
            self.cast([protocol.ENDING.pack(Op.ENDING, 0)])

    def _tell(self, number: int) -> None:
        self.send_all()
        self.cast([protocol.TOLD.pack(Op.TOLD, 0, number)])

    def _tell_all(self) -> None:
        """Have the owner know all that was put and done here before what is asked next."""
        self.send_all()
        for source in list(self._sources.values()):
            if isinstance(source, TaskSource):
                source.tell_done()

    def _ask(self, question: bytes) -> memoryview:
        try:
            pending = self.call([question])
            pending.wait()
            return pending.result()
        except PeerLostError as error:
            raise self.loss(error) from error
