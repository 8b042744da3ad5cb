"""The worker's side: ask for entries, run them in order, hand results back as they come."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fiber._tasks import arguments, protocol
from fiber._tasks.batch import Batch, Current
from fiber._tasks.broadcast import Memory
from fiber._tasks.call import Unsendable
from fiber._tasks.control_reader import Attendant
from fiber._tasks.functions import Functions
from fiber._tasks.modes import Mode
from fiber._tasks.protocol import Tasks
from fiber._tasks.shared_payload import BlindError, Places
from fiber._wire import codec, frames
from fiber._wire.frames import Kind, Message
from fiber._wire.link import Link
from fiber.exceptions import FiberError, PeerLostError

# as numbers: an operation on a member of an enum takes as long as reading an entry
_APPLY, _STARMAP, _SINGLY = int(Mode.APPLY), int(Mode.STARMAP), int(Mode.SINGLY)
_APART = int(Mode.APART)


class DescriptorsLostError(FiberError):
    """A task has closed or replaced descriptors of the worker that ran it."""


class Worker:
    """Runs the entries of one pool in the calling thread until it is retired.

    Args:
        link: to the pool.
        target: number by which it addresses the pool.
        redial: makes another link in place of a lost one.
        memory: finds what the pool laid on this host.
    """

    def __init__(
        self,
        link: Link,
        target: int,
        redial: Callable[[], Link],
        memory: Memory | None = None,
    ) -> None:
        self._link = link
        self._memory = memory
        #: True where what its pool laid was not to be found
        self._blind = False
        self._target = target
        self._redial = redial
        self._functions = Functions()
        self._places = Places(memory)
        #: messages that the attendant read while an entry ran
        self._inbox: deque[Message] = deque()
        self._reading = threading.Lock()
        #: True where the last message let us wait, so that a look for the next one is in vain
        self._waits = False
        self._running: Batch | None = None
        self._attendant: Attendant[Batch] = Attendant(self._attend, self._linger)

    def run(self) -> None:
        """Work until the pool retires this worker or is gone.

        Raises:
            DescriptorsLostError: this process cannot work any more.
        """
        try:
            self._ask(protocol.CREDITS)
            while True:
                try:
                    message = self._receive()
                    if message.kind is Kind.RETIRE:
                        return
                    self._take(message)
                except PeerLostError as error:
                    if not self._link.is_intact:
                        # another link would not mend what else was closed, and the task that did it
                        # would be run again and again: it is to count as the worker's death
                        msg = "a task has closed or replaced descriptors of its worker"
                        raise DescriptorsLostError(msg) from error
                    # what was at hand is run elsewhere; the pool knows this worker by a new link
                    self._inbox.clear()
                    self._functions.forget_calls()
                    self._link.close()
                    self._link = self._redial()
                    self._ask(protocol.CREDITS)
        finally:
            self._attendant.close()

    def report_broken(self, error: BaseException) -> None:
        """Tell the pool that the initializer failed."""
        self._link.send(Kind.BROKEN, self._target, 0, codec.dumps(codec.with_traceback(error)))

    def _ask(self, credits_: int) -> None:
        self._link.send(Kind.ASK, self._target, 0, [protocol.ask(credits_)])

    def _check_link(self) -> None:
        if not self._link.is_intact:
            msg = "the descriptors of the connection are gone"
            raise PeerLostError(msg)

    def _hand_over(self, segments: Sequence[frames.Buffer]) -> None:
        # not into a file that a task has put in the place of our connection
        self._check_link()
        self._link.send(Kind.DONE, self._target, 0, segments)

    def _receive(self) -> Message:
        waited = False
        while True:
            with self._reading:
                if self._inbox:
                    return self._inbox.popleft()
                if waited or not self._waits or self._link.buffered:
                    message = self._link.receive(timeout=0)
                    if message is not None:
                        self._waits = waited
                        return message
            self._check_link()
            self._link.wait()
            waited = True

    def _take(self, message: Message) -> None:
        if message.kind is Kind.TASKS:
            tasks, items = protocol.read_tasks(message.body)
            self._run(tasks, items)
        elif message.kind is Kind.FUNCTION:
            self._learn(message)
        elif message.kind is Kind.REVOKE:
            # nothing runs and everything before it in the pipe is done
            number = protocol.read_entry(message.body)
            self._link.send(Kind.KEPT, self._target, 0, [protocol.kept(number, 2**63)])

    def _function(self, tasks: Tasks) -> Any:
        functions = self._functions
        found = functions.of_call(tasks.call)
        if found is not None:
            return found
        if tasks.digest not in functions and not self._ask_for(tasks.digest):
            return _nothing
        return functions.load(tasks.call, tasks.digest)

    def _ask_for(self, digest: bytes) -> bool:
        """Wait for a function that was dropped; False where its call is over."""
        number = protocol.LAID if self._blind else 0
        self._link.send(Kind.MISSING, self._target, number, [digest])
        while True:
            # others that come meanwhile are worth keeping as well
            message = self._await(Kind.FUNCTION, None)
            if self._learn(message) == digest:
                if self._blind and message.id == protocol.LAID:
                    return self._ask_for(digest)
                return digest in self._functions

    def _await(self, kind: Kind, number: int | None) -> Message:
        """The next message of a kind and number; those before it are kept for later, in order."""
        held: list[Message] = []
        try:
            while True:
                message = self._receive()
                if message.kind is kind and number in (None, message.id):
                    return message
                held.append(message)
        finally:
            with self._reading:
                self._inbox.extendleft(reversed(held))

    def _learn(self, message: Message) -> bytes:
        """Keep a function, or drop one where nothing comes with its digest; return that."""
        digest, pickled = protocol.read_function(message.body)
        if not pickled:
            self._functions.forget(digest)
        elif message.id != protocol.LAID:
            self._functions.learn(digest, bytes(pickled))
        else:
            laid = None if self._memory is None else self._memory.find(bytes(pickled))
            if laid is not None:
                self._functions.learn(digest, laid)
            self._blind = laid is None
        return digest

    def _run(self, tasks: Tasks, body: memoryview) -> None:
        batch = Batch(
            tasks,
            self._hand_over,
            lambda: self._catch_up(batch.current),
        )
        try:
            function = self._function(tasks)
            mode, items = self._items(tasks, body)
        except Exception as error:
            if isinstance(error, PeerLostError) and (self._link.lost or not self._link.is_intact):
                raise
            batch.fail(error)
            return
        call = _caller(mode, function)
        self._running = batch
        while self._link.buffered:
            # no descriptor will tell the attendant of these
            self._attend(batch)
        if tasks.stop - tasks.start > tasks.chunk or self._inbox:
            self._attendant.watch(batch, self._link.fds)
        try:
            batch.run(call, items)
        finally:
            self._running = None
            self._attendant.rest()
        if batch.was_long:
            self._catch_up(None)

    def _catch_up(self, current: Current | None) -> None:
        """Take in what came during a long unit: nothing is begun that was asked back before."""
        with self._reading:
            while (message := self._link.receive(timeout=0)) is not None:
                self._heed(message, current)

    def _items(self, tasks: Tasks, body: memoryview) -> tuple[int, Sequence[Any]]:
        mode = tasks.mode & ~_APART
        try:
            if mode == tasks.mode:
                items: Sequence[Any] = codec.loads(body)
            else:
                items = arguments.read(body, self._places.of(tasks.call))
        except Exception as error:
            blind = isinstance(error, BlindError)
            if blind:
                # the next ones shall come as they are
                self._link.send(Kind.MISSING, self._target, protocol.LAID, [tasks.digest])
            elif tasks.stop - tasks.start == 1:
                raise
            # one of them cannot be read, and must not spoil the others
            self._link.send(Kind.UNREAD, self._target, 0, [protocol.entry(tasks.entry)])
            again, body = protocol.read_tasks(self._await(Kind.TASKS, tasks.entry).body)
            return again.mode, codec.loads(body)
        return mode, items

    # -- on the attendant's thread, while an entry takes long

    def _linger(self, batch: Batch) -> None:
        # results that wait for the end of a long task are wanted now
        with contextlib.suppress(PeerLostError):
            batch.flush()

    def _attend(self, batch: Batch) -> None:
        with self._reading:
            if self._running is not batch:
                return
            try:
                message = self._link.receive(timeout=0)
                if message is not None:
                    self._heed(message, batch.current)
            except PeerLostError:
                # the main thread finds out as soon as it is back, and dials again
                return

    def _heed(self, message: Message, current: Current | None) -> None:
        """Hand back what is asked for; anything else waits for its turn."""
        if message.kind is not Kind.REVOKE:
            self._inbox.append(message)
            return
        number = protocol.read_entry(message.body)
        stop = self._revoke(number, current)
        self._link.send(Kind.KEPT, self._target, 0, [protocol.kept(number, stop)])

    def _revoke(self, number: int, current: Current | None) -> int:
        if current is not None and current.tasks.entry == number:
            return current.hand_back()
        for position, waiting in enumerate(self._inbox):
            # the number of a TASKS message is its entry's
            if waiting.kind is Kind.TASKS and waiting.id == number:
                tasks, _ = protocol.read_tasks(waiting.body)
                del self._inbox[position]
                self._ask(1)
                return tasks.start
        # done already: everything of it was kept
        return 2**63


def _nothing(*_: Any, **__: Any) -> None:
    """The function of a call that nobody waits for any more."""


def _caller(mode: int, function: Any) -> Callable[[Any], Any]:
    """What is called with an item as it came."""
    call: Callable[[Any], Any] = function
    how = mode & ~_SINGLY
    if how == _STARMAP:

        def call(item: Any) -> Any:
            return function(*item)

    elif how == _APPLY:

        def call(item: Any) -> Any:
            return function(*item[0], **item[1])

    return _singly(call) if mode & _SINGLY else call


def _singly(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def singly(pickled: Any) -> Any:
        item = codec.loads(memoryview(pickled))
        if isinstance(item, Unsendable):
            raise item.error
        return call(item)

    return singly
