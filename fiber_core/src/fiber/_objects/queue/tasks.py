"""Queues of tasks (``JoinableQueue``): items that are counted until each is done.

A task that a reader was handed is settled with the queue, but stays with that reader's deliveries
until it reports one done: when the reader's process dies, the tasks it had not done go back to the
front. Readers report tasks in the order in which they got them; one without tasks reports one of
another reader, since multiprocessing lets any process call ``task_done``.

``join`` waits for all tasks put before, and puts of other processes may be in transit. So each
process that holds the queue is asked to confirm that all it put is sent; the confirmation arrives
after the items, and then the count is true for the thread that joins.

One module for the state machine (pure), the owner's side and the others', as each is small.
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
from fiber._base.threads import in_turns
from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.protocol import Notice, Op
from fiber._objects.queue import progress
from fiber._objects.queue.bypass import Positioned, Progress
from fiber._objects.queue.channel import Channel
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._objects.queue.progress import ProgressSlot
from fiber._objects.queue.reader import RemoteReader
from fiber._objects.queue.remote_channel import RemoteChannel
from fiber._objects.queue.requests import Commands, Deliver, Drop
from fiber._objects.queue.state import InFlight, QueueState
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError, WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store

_position = itemgetter(0)


def _none_done() -> int:
    return 0


class TasksInFlight(InFlight):
    """Deliveries to one reader, and its tasks: items handed out and not done."""

    __slots__ = ("_done", "_seen", "has_died", "is_ending", "tasks")

    def __init__(self, progress: Callable[[], Progress] | None = None) -> None:
        if progress is None:
            super().__init__()
        else:
            super().__init__(progress)
        #: items handed out and not done
        self.tasks: deque[Positioned] = deque()
        #: True where the reader's process died, and did not end by itself
        self.has_died = False
        #: True where the reader announced that it ends by itself
        self.is_ending = False
        # tasks done, as the reader notes in shared memory and as it has reported
        self._seen: Callable[[], int] = _none_done
        self._done = 0

    def watch_progress(self, seen: Callable[[], int]) -> None:
        """Set a function that reads the number of tasks done from shared memory."""
        self._seen = seen

    def settle(self, upto: int) -> None:
        """Settle items up to a number: they are tasks now."""
        handed = list(islice(self._unsettled, max(0, upto - self.settled)))
        super().settle(upto)
        self.tasks.extend(handed)

    def done(self, total: int) -> int:
        """Note that ``total`` tasks are done by now; how many of them were not reported before.

        Raises:
            WireError: the reader was delivered fewer.
        """
        if total > self.delivered:
            msg = f"a reader has done {total} tasks of {self.delivered}"
            raise WireError(msg)
        new = max(0, total - self._done)
        self._done += new
        return new

    def remove(self) -> int:
        """Make all items handed out tasks, as the reader is gone; how many were done unreported."""
        back = {position for position, _ in self.unconsumed()}
        handed_out = [one for one in self._unsettled if one[0] not in back]
        self.tasks.extend(handed_out)
        return self.done(min(self._seen(), self.delivered))


class TaskQueueState(QueueState):
    """The state of a queue of tasks. Not thread-safe."""

    def __init__(self, *, maxsize: int = 0) -> None:
        super().__init__(maxsize=maxsize)
        #: items that were put and are not done
        self.unfinished = 0
        # tasks of the owner's threads and of readers that ended: those with references, else None
        self._without_reader: deque[Item | None] = deque()

    # -- tasks

    def task_done(self, reader: Hashable) -> Commands | None:
        """Count a task of a reader as done; None where all are done already."""
        if not self.unfinished:
            return None
        self.unfinished -= 1
        item = self._oldest(reader)
        # a done task is loaded no more: its references are released
        return [] if item is None else [Drop([item])]

    def tasks_done(self, reader: Hashable, upto: int, total: int) -> Commands:
        """Settle items up to ``upto``; count ``total`` tasks of a reader as done by now.

        Raises:
            WireError: it was delivered fewer.
        """
        out = self.settle(reader, upto)
        in_flight = self._in_flight.get(reader)
        if isinstance(in_flight, TasksInFlight):
            for _ in range(in_flight.done(total)):
                out += self.task_done(reader) or []
        return out

    def mark_ending(self, reader: Hashable) -> None:
        """Note that a reader ends by itself: its tasks do not come back."""
        in_flight = self._in_flight.get(reader)
        if isinstance(in_flight, TasksInFlight):
            in_flight.is_ending = True

    def mark_dead(self, reader: Hashable) -> None:
        """Note that a reader died, unless it was ending; before it is removed."""
        in_flight = self._in_flight.get(reader)
        if isinstance(in_flight, TasksInFlight):
            in_flight.has_died = not in_flight.is_ending

    def watch_progress(self, reader: Hashable, seen: Callable[[], int]) -> None:
        """Set a function that reads the number of tasks that a reader has done."""
        in_flight = self._in_flight.get(reader)
        if isinstance(in_flight, TasksInFlight):
            in_flight.watch_progress(seen)

    def _oldest(self, reader: Hashable) -> Item | None:
        """Remove a task: of the reader, else one without a reader, else the oldest of all."""
        others = [
            one for one in self._in_flight.values() if isinstance(one, TasksInFlight) and one.tasks
        ]
        own = self._in_flight.get(reader)
        if isinstance(own, TasksInFlight) and own.tasks:
            return own.tasks.popleft()[1]
        if self._without_reader:
            return self._without_reader.popleft()
        if others:
            return min(others, key=lambda one: one.tasks[0][0]).tasks.popleft()[1]
        return None

    # -- overridden

    def put_now(self, item: Item) -> bool:
        """See :class:`QueueState`."""
        added = super().put_now(item)
        self.unfinished += added
        return added

    def deliver_now(self, item: Item) -> Deliver | None:
        """See :class:`QueueState`."""
        delivery = super().deliver_now(item)
        self.unfinished += delivery is not None
        return delivery

    def take_now(self) -> Item | None:
        """See :class:`QueueState`; the task never comes back, as the queue ends with its owner."""
        item = super().take_now()
        if item is not None:
            self._release(item)
        return item

    def undo_take(self, item: Item) -> Commands:
        """See :class:`QueueState`."""
        self._without_reader.remove(item if isinstance(item, ItemWithReferences) else None)
        return super().undo_take(item)

    def add_reader(self, reader: Hashable, progress: Callable[[], Progress] | None = None) -> None:
        """See :class:`QueueState`."""
        if reader not in self._in_flight:
            self._in_flight[reader] = TasksInFlight(progress)

    def remove_reader(self, reader: Hashable) -> Commands:
        """See :class:`QueueState`; tasks of a reader that died come back."""
        in_flight = self._in_flight.get(reader)
        out: Commands = []
        if isinstance(in_flight, TasksInFlight):
            for _ in range(in_flight.remove()):
                out += self.task_done(reader) or []
            if in_flight.has_died:
                self._put_back(sorted(in_flight.tasks, key=_position))
            else:
                for _, item in in_flight.tasks:
                    self._release(item)
        return out + super().remove_reader(reader)

    def advance(self) -> Commands:
        """See :class:`QueueState`."""
        out = super().advance()
        for one in out:
            if isinstance(one, Deliver) and one.request.reader is None:
                for item in one.items:
                    self._release(item)
        return out

    def _let_in(self, items: Iterable[Item]) -> None:
        tasks = list(items)
        self.unfinished += len(tasks)
        super()._let_in(tasks)

    def _release(self, item: Item) -> None:
        # an item without references is of no use once it was loaded
        self._without_reader.append(item if isinstance(item, ItemWithReferences) else None)


@values.define(eq=False)
class _Joiner:
    """A thread, in any process, that waits until all tasks are done."""

    #: wakes it; called with the lock held
    release: Callable[[], Any]
    #: its process; None for the owner
    peer: Peer | None
    #: processes that have not confirmed yet that all they put is sent
    unconfirmed: set[Any]


class TaskChannel(Channel):
    """A queue of tasks at its owner."""

    def __init__(self, store: Store, maxsize: int = 0) -> None:
        super().__init__(store, Kind.TASKS, maxsize)
        self._tasks = TaskQueueState(maxsize=maxsize)
        self.states = [self._tasks]
        self._joiners: dict[int, _Joiner] = {}
        self._numbers = itertools.count(1)

    @property
    def endpoint(self) -> None:
        """None: the handler thread alone counts its tasks, since an interrupt ends nothing there."""
        return

    # -- for handles of this process

    def finish(self, reader: object) -> bool:
        """Count a task as done; False where all were done already."""
        with self.lock:
            return self._task_done(None)

    def join(self) -> None:
        """Wait until all tasks are done."""
        done = threading.Event()
        with self.lock:
            number = self._join(None, done.set)
        try:
            in_turns(done.wait)
        finally:
            with self.lock:
                self._joiners.pop(number, None)

    # -- inside; the lock is held

    def execute(self, direction: int, commands: Commands) -> None:
        """See :class:`Channel`; a reader that is gone may have done the last task."""
        super().execute(direction, commands)
        self._release_joiners()

    def _task_done(self, reader: Peer | None) -> bool:
        out = self._tasks.task_done(reader)
        if out is None:
            return False
        self.execute(0, out)
        return True

    def _join(self, peer: Peer | None, release: Callable[[], Any]) -> int:
        number = next(self._numbers)
        unconfirmed = {one for one in self._references.peers(0) if one is not peer}
        self._joiners[number] = _Joiner(release, peer, unconfirmed)
        for one in unconfirmed:
            if isinstance(one, Peer):
                notice = protocol.CONFIRM_PUTS.pack(Notice.CONFIRM_PUTS, 0, number)
                one.send(Frame.CAST, self.target, 0, [notice])
        self._release_joiners()
        return number

    def _release_joiners(self) -> None:
        """Wake those that wait, once all tasks are done."""
        if self._tasks.unfinished:
            return
        for number, joiner in list(self._joiners.items()):
            if not joiner.unconfirmed:
                del self._joiners[number]
                joiner.release()

    # -- other processes

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        body = message.body
        if op == Op.TASKS_DONE:
            _, direction, upto, total = protocol.read(protocol.TASKS_DONE, body)
            self._check(direction)
            self.execute(0, self._tasks.tasks_done(peer, upto, total))
        elif op == Op.TASK_DONE:
            counted = protocol.COUNTED.pack(self._task_done(peer))
            peer.send(Frame.REPLY, self.target, message.id, [counted])
        elif op == Op.JOIN:
            number = message.id

            def release() -> None:
                peer.send(Frame.REPLY, self.target, number, [])

            self._join(peer, release)
        elif op == Op.PUTS_CONFIRMED:
            joiner = self._joiners.get(protocol.read(protocol.PUTS_CONFIRMED, body)[2])
            if joiner is not None:
                joiner.unconfirmed.discard(peer)
                self._release_joiners()
        elif op == Op.ENDING:
            self._tasks.mark_ending(peer)
        else:
            super()._on_request(peer, message, op)

    @staticmethod
    def _check(direction: int) -> None:
        if direction:
            msg = f"a message names direction {direction} of a queue"
            raise WireError(msg)

    # -- references

    def on_peer_lost(self, peer: Peer) -> None:
        """Remove a process that is gone; its tasks come back unless it ended by itself."""
        with self.lock:
            self._tasks.mark_dead(peer)
        super().on_peer_lost(peer)

    def _on_attach(self, peer: Peer, end: int, slot: int, tag: bytes, page: bytes) -> bool:
        seen = super()._on_attach(peer, end, slot, tag, page)
        if seen:
            words = self._store.page(peer, page, tag)
            if words is not None:
                self._tasks.watch_progress(peer, progress.tasks_done_of(words, slot))
        return seen

    def _on_detach(self, peer: Peer, end: int) -> None:
        for number, joiner in list(self._joiners.items()):
            joiner.unconfirmed.discard(peer)
            if joiner.peer is peer:
                del self._joiners[number]
        super()._on_detach(peer, end)


#: seconds within which tasks done are reported to the owner
_REPORT_AFTER = 0.002
#: tasks after which they are reported at once
_REPORT_TASKS = 256
_CONFIRM_PUTS = bytes([Notice.CONFIRM_PUTS])


class TaskReader(RemoteReader):
    """Reader of a queue of tasks; it also reports the tasks done.

    A task done is reported at once, or with others where they follow each other closely.

    Locks: ``_tasks_lock`` guards the counters, ``_order`` is held over reporting.
    """

    def __init__(
        self, remote: RemoteTasks, direction: int, slot: ProgressSlot, session: int
    ) -> None:
        super().__init__(remote, direction, slot, session)
        self._tasks = remote
        self._tasks_lock = threading.Lock()
        self._order = threading.Lock()
        # items returned by take, tasks done, and tasks reported as done
        self._tasks_taken = self._done = self._reported_done = 0
        self._reported_done_at = 0.0
        # True while a timer is going to report
        self._done_report_is_scheduled = False
        # True once the slot may be another reader's
        self._slot_released = False

    def take(self, block: bool, timeout: float | None) -> Item:
        """Take the next item."""
        item = super().take(block, timeout)
        with self._tasks_lock:
            self._tasks_taken += 1
        return item

    def finish(self) -> bool:
        """Count one of the tasks of this process as done; False where it has none."""
        with self._tasks_lock:
            if self._done == self._tasks_taken or self._slot_released or self._error is not None:
                return False
            if self._tasks.is_lost:
                # the call to the owner that follows raises the error
                return False
            self._done += 1
            # seen by an owner on this host even if this process dies now
            self.slot.note_done(self._done)
            crowd = time.monotonic() - self._reported_done_at < _REPORT_AFTER
            now = not crowd or self._done - self._reported_done >= _REPORT_TASKS
            later = not now and not self._done_report_is_scheduled
            self._done_report_is_scheduled = self._done_report_is_scheduled or later
        if now:
            self.report_done()
        elif later:
            soon = functools.partial(self._remote.submit, self.report_done)
            self._remote.call_later(_REPORT_AFTER, soon)
        return True

    def report_done(self) -> None:
        """Report the tasks done; when it returns all are reported, by whichever thread."""
        with self._order:
            self._report_done()

    def _report_done(self) -> None:
        with self._tasks_lock:
            self._done_report_is_scheduled = False
            total = self._done
            if total == self._reported_done:
                return
            self._reported_done = total
            self._reported_done_at = time.monotonic()
        # items put before a task was done are counted before it
        self._tasks.send_all()

        def message() -> bytes:
            self._reported = self._returned
            return protocol.TASKS_DONE.pack(Op.TASKS_DONE, self._direction, self._reported, total)

        self._send(message)

    def close(self) -> None:
        """Report the tasks done and give prefetched items back."""
        with self._tasks_lock:
            self._slot_released = True
        self.report_done()
        super().close()


class RemoteTasks(RemoteChannel):
    """A queue of tasks of another process."""

    _reader_class = TaskReader

    def finish(self, reader: object) -> bool:
        """Count a task as done; False where all were done already."""
        if isinstance(reader, TaskReader) and reader.finish():
            return True
        self._report_all()
        answer = self._ask(protocol.TASK_DONE.pack(Op.TASK_DONE, 0))
        return bool(protocol.read(protocol.COUNTED, answer)[0])

    def join(self) -> None:
        """Wait until all tasks are done."""
        self._report_all()
        self._ask(protocol.JOIN.pack(Op.JOIN, 0))

    def send_all(self) -> None:
        """Send all items that were put."""
        for writer in list(self._writers.values()):
            writer.send_all()

    def on_notice(self, message: Message) -> None:
        """Take a message of the owner that is no reply; on the handler thread."""
        if message.body[:1] == _CONFIRM_PUTS:
            number = protocol.read(protocol.CONFIRM_PUTS, message.body)[2]
            self.submit(functools.partial(self._confirm_sent, number))
        else:
            super().on_notice(message)

    def on_exit(self, code: int) -> None:
        """Announce that this process ends by itself, unless it failed: then its tasks come back."""
        if code:
            return
        # there is nothing to announce to an owner that is gone
        with contextlib.suppress(PeerLostError):
            self.cast([protocol.ENDING.pack(Op.ENDING, 0)])

    def _confirm_sent(self, number: int) -> None:
        self.send_all()
        self.cast([protocol.PUTS_CONFIRMED.pack(Op.PUTS_CONFIRMED, 0, number)])

    def _report_all(self) -> None:
        """Send all items put and report all tasks done, before a call to the owner."""
        self.send_all()
        for reader in list(self._readers.values()):
            if isinstance(reader, TaskReader):
                reader.report_done()

    def _ask(self, question: bytes) -> memoryview:
        try:
            pending = self.call([question])
            pending.wait()
            return pending.result()
        except PeerLostError as error:
            raise self.loss_error(error) from error
