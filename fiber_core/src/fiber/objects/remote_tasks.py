"""A queue of tasks as another process than its owner's sees it."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

from fiber.exceptions import PeerLostError
from fiber.objects import protocol
from fiber.objects.items import Item
from fiber.objects.protocol import Op, Word
from fiber.objects.remote_channel import RemoteChannel
from fiber.objects.source import RemoteSource
from fiber.transport.wire import Message

_TELL = bytes([Word.TELL])


class TaskSource(RemoteSource):
    """The reading side, which also notes what is done."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._counting = threading.Lock()
        # tasks handed out to users here, and those done by them
        self._tasks = self._done = 0

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item, see :class:`~fiber.objects.ends.Source`."""
        item = super().take(block, timeout)
        with self._counting:
            self._tasks += 1
        return item

    def finish(self) -> bool:
        """One of the tasks that were handed out here is done; False where there is none."""
        with self._counting:
            if self._done == self._tasks or self._closed or self._error is not None:
                return False
            self._done += 1
            # whatever becomes of us: it is not done again
            self.slot.did(self._done)

        def message() -> bytes:
            self._told = self._returned
            return protocol.TASKS_DONE.pack(Op.TASKS_DONE, self._lane, self._told, self._done)

        self._send(message)
        return True


class RemoteTasks(RemoteChannel):
    """Its lane, and what is done with the tasks in it."""

    _source_class = TaskSource

    def finish(self, source: object) -> bool:
        """A task was done; False where all were done already."""
        self._send_all()
        if isinstance(source, TaskSource) and source.finish():
            return True
        answer = self._ask(protocol.TASK_DONE.pack(Op.TASK_DONE, 0))
        return bool(protocol.read(protocol.COUNTED, answer)[0])

    def join(self) -> None:
        """Wait until all tasks are done."""
        self._send_all()
        self._ask(protocol.JOIN.pack(Op.JOIN, 0))

    def on_word(self, message: Message) -> None:
        """On the handler thread: the owner says something unasked."""
        if message.body[:1] == _TELL:
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
        self._send_all()
        self.cast([protocol.TOLD.pack(Op.TOLD, 0, number)])

    def _send_all(self) -> None:
        for sink in list(self._sinks.values()):
            sink.send_all()

    def _ask(self, question: bytes) -> memoryview:
        try:
            pending = self.call([question])
            pending.wait()
            return pending.result()
        except PeerLostError as error:
            raise self.loss(error) from error
