"""A queue of tasks as another process than its owner's sees it."""

from __future__ import annotations

import contextlib
import functools
import threading
import time

from fiber._objects import protocol
from fiber._objects.protocol import Op, Word
from fiber._objects.queue.messages import Item
from fiber._objects.queue.progress import Slot
from fiber._objects.queue.reader import RemoteSource
from fiber._objects.queue.remote_channel import RemoteChannel
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

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
        """The next item, see :class:`~fiber._objects.handle_actions.Source`."""
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
