"""The worker's side: ask for entries, run them in order, hand results back as they come.

The functions that a worker was sent: pickled by digest, unpickled afresh for each call.

A thread that looks after a worker's link while a task of the worker takes long.

The main thread reads the link itself, which saves a thread hop for each entry. While it is inside
a long task, somebody must still answer when the pool wants back what has not begun, and hand over
the results of what was done before. The attendant does, and only then: it begins to look after ``PATIENCE`` seconds of the same entry, so that short
entries cost it nothing.

One entry while a worker runs it: how far it may go, and handing over what is done in time.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fiber._tasks import arguments, protocol
from fiber._tasks.call import Unsendable
from fiber._tasks.outcomes import Outcomes
from fiber._tasks.protocol import Done, Mode, Tasks
from fiber._tasks.shared_payload import BlindError, Memory, Places
from fiber._wire import codec, frames
from fiber._wire.descriptors import await_readable
from fiber._wire.frames import Kind, Message
from fiber._wire.link import Link
from fiber.exceptions import FiberError, PeerLostError

if TYPE_CHECKING:
    from fiber._tasks.shared_payload import Laid

#: results wait at most this long for others, or as long as it took until the last ones were handed
#: over: each message costs 100 µs of CPU on both sides, and a master of many workers gives long entries
_HOLD = 0.002
#: and no more than so many bytes of them that had to be pickled ahead of time
_LARGE = 256 * 2**10
#: seconds of a unit after which what came meanwhile is looked at: it may have held the interpreter
#: all the time, so that the attendant could not
_LONG = 0.05


class Current:
    """The entry being run, and how far it may go; shared with the attendant."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._index = tasks.start
        self._limit = tasks.stop
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Items from here on were handed back."""
        with self._lock:
            return self._limit

    def hand_back(self) -> int:
        """Give up what has not begun, by whole units; return where the kept part ends."""
        tasks = self.tasks
        with self._lock:
            limit = self._limit
            # first nothing may begin any more: an index noted from now on waits for our word,
            # and the one noted before is the one we read
            self._limit = tasks.start
            begun = (self._index - tasks.start) // tasks.chunk + 1
            self._limit = min(limit, tasks.start + begun * tasks.chunk)
            return self._limit

    def may_run(self, index: int) -> bool:
        """Note that an item is about to run; False where it was handed back."""
        self._index = index
        if index < self._limit:
            return True
        with self._lock:
            return index < self._limit


class Batch:
    """Runs one entry.

    Args:
        tasks: its head.
        send: hands over the body of a DONE message.
        look: looks at what came during a long unit, before the next one begins.
    """

    def __init__(
        self,
        tasks: Tasks,
        send: Callable[[Sequence[frames.Buffer]], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.current = Current(tasks)
        self._tasks = tasks
        self._send = send
        self._look = look
        #: True where the last unit was a long one
        self.was_long = False
        self._lock = threading.Lock()
        self._outcomes = Outcomes()
        #: the first item that was not handed over
        self._from = tasks.start
        #: the first item of the unit at hand
        self._unit = tasks.start
        #: when the entry began, the first of these did, and the second did
        self._start = self._began = self._unit_began = time.perf_counter()

    def run(self, call: Callable[[Any], Any], items: Sequence[Any]) -> None:
        """Run the items one after another, until the end or what was handed back."""
        start, chunk, last = self._tasks.start, self._tasks.chunk, len(items) - 1
        may_run, lock = self.current.may_run, self._lock
        skip_to = 0
        for offset, item in enumerate(items):
            if offset % chunk == 0 and not may_run(start + offset):
                break
            if offset < skip_to:
                with lock:
                    self._outcomes.skip()
            else:
                try:
                    value = call(item)
                # an exception of the task is its result; what is no Exception ends the worker,
                # as it does in multiprocessing
                except Exception as error:
                    with lock:
                        self._outcomes.fail(error)
                    skip_to = offset - offset % chunk + chunk
                else:
                    with lock:
                        self._outcomes.add(value)
            # the last results are handed over with the credit for another entry
            if (offset + 1) % chunk == 0 and offset != last:
                self._unit_ended(start + offset + 1)
                if self.was_long:
                    self._look()
        with lock:
            began, self._unit_began = self._unit_began, time.perf_counter()
            self.was_long = self._unit_began - began > _LONG
            self._hand_over(self.current.limit, 1)

    def flush(self) -> None:
        """Hand over what waits, from another thread, because the unit at hand takes long."""
        with self._lock:
            if self._from < self._unit == self._from + len(self._outcomes):
                self._hand_over(self._unit, 0)
                self._began = self._unit_began

    def fail(self, error: BaseException) -> None:
        """The function or its arguments could not be loaded: that is every item's outcome."""
        self._outcomes.fail(error, self._tasks.stop - self._tasks.start)
        self._unit_began = time.perf_counter()
        self._hand_over(self._tasks.stop, 1)

    def _unit_ended(self, stop: int) -> None:
        with self._lock:
            began, self._unit, self._unit_began = self._unit_began, stop, time.perf_counter()
            self.was_long = self._unit_began - began > _LONG
            if self._unit_began - self._began < max(_HOLD, self._began - self._start):
                # what the next task may change is pickled before it runs
                self._outcomes.settle()
                if self._outcomes.packed_bytes < _LARGE:
                    return
            self._hand_over(stop, 0)
            # the way of these results is no part of what the next ones take
            self._began = self._unit_began = time.perf_counter()

    def _hand_over(self, stop: int, credits_: int) -> None:
        seconds = self._unit_began - self._began
        done = Done(self._tasks.entry, self._from, stop, seconds, credits_)
        self._send([done.encode(), *self._outcomes.encode()])
        self._from, self._outcomes = stop, Outcomes()


K = TypeVar("K")
V = TypeVar("V")

#: bytes of pickled functions that a worker keeps
PICKLED = 256 * 2**20
#: bytes, as pickled, of the functions that are ready to be called
READY = 64 * 2**20
#: what one costs besides its bytes
_OVERHEAD = 1024


class Functions:
    """A cache bounded in bytes; what was dropped is asked for again.

    Args:
        pickled: bytes of pickles that are kept; the last one is, whatever its size.
        ready: bytes, as pickled, of functions that are kept unpickled, likewise.
    """

    def __init__(self, pickled: int = PICKLED, ready: int = READY) -> None:
        self._pickles: _Bounded[bytes, bytes | Laid] = _Bounded(pickled)
        # with their digests
        self._ready: _Bounded[int, tuple[Any, bytes]] = _Bounded(ready)

    def __contains__(self, digest: object) -> bool:
        return digest in self._pickles

    def learn(self, digest: bytes, pickled: bytes | Laid) -> None:
        """Keep a function."""
        self._pickles.put(digest, pickled, _size(pickled))

    def of_call(self, call: int) -> Any:
        """The function of a call, or None where it must be loaded (again)."""
        found = self._ready.get(call)
        return None if found is None else found[0]

    def load(self, call: int, digest: bytes) -> Any:
        """Unpickle the function of a call, one that is kept.

        Raises:
            Exception: what unpickling it raised.
        """
        pickled = self._pickles.get(digest)
        assert pickled is not None
        # a copy: what one call makes of a captured array is nothing to the next
        if isinstance(pickled, bytes):
            private = memoryview(bytearray(pickled))
        else:
            # page by page, and of those alone that are written to
            private = pickled.private()
        function = codec.loads(private)
        self._ready.put(call, (function, digest), _size(pickled))
        return function

    def forget(self, digest: bytes) -> None:
        """Drop a function."""
        self._pickles.drop(lambda key, _: key == digest)
        self._ready.drop(lambda _, ready: ready[1] == digest)

    def forget_calls(self) -> None:
        """Have each call's function loaded again."""
        self._ready.clear()


def _size(pickled: bytes | Laid) -> int:
    return len(pickled) if isinstance(pickled, bytes) else pickled.size


class _Bounded(Generic[K, V]):
    """Values by key; the least recently used ones go first, and the last one stays in any case."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def get(self, key: K) -> V | None:
        """The value, used just now."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value in place of any other of its key."""
        former = self._held.pop(key, None)
        if former is not None:
            self._size -= former[1]
        size += _OVERHEAD
        self._held[key] = value, size
        self._size += size
        while self._size > self._limit and len(self._held) > 1:
            _, (_, dropped) = self._held.popitem(last=False)
            self._size -= dropped

    def drop(self, is_unwanted: Callable[[K, V], bool]) -> None:
        """Drop some."""
        for key in [key for key, (value, _) in self._held.items() if is_unwanted(key, value)]:
            self._size -= self._held.pop(key)[1]

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
        self._size = 0


T = TypeVar("T")

#: seconds that an entry runs before the attendant begins to look
PATIENCE = 0.05


class Attendant(Generic[T]):
    """Looks after one subject at a time.

    Args:
        attend: called with the subject whenever the link has something while it runs on.
        linger: called with the subject every now and then while it runs on.
    """

    def __init__(self, attend: Callable[[T], None], linger: Callable[[T], None]) -> None:
        self._attend = attend
        self._linger = linger
        self._changed = threading.Condition()
        self._subject: T | None = None
        self._fds: tuple[int, ...] = ()
        self._idle = True
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, subject: T, fds: tuple[int, ...]) -> None:
        """The main thread begins with ``subject``; the descriptors tell of its link."""
        self._fds = fds
        self._subject = subject
        # a busy attendant sees the new subject at its next look; only an idle one is woken
        if self._idle:
            with self._changed:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="fiber-attendant", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()

    def rest(self) -> None:
        """The main thread is done with the subject and reads the link itself."""
        self._subject = None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._subject = None
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        while True:
            with self._changed:
                subject = self._subject
                if self._closed:
                    return
                if subject is None:
                    self._idle = True
                    self._changed.wait_for(lambda: self._closed or self._subject is not None)
                    self._idle = False
                    continue
                self._idle = False
                # most entries are done before this
                self._changed.wait(PATIENCE)
            if self._subject is subject and not self._closed:
                self._linger(subject)
                self._look(subject)

    def _look(self, subject: T) -> None:
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        # the main thread ends a subject without a word, so that it never pays for one
        is_readable = await_readable(poll, self._fds, PATIENCE)
        if is_readable and self._subject is subject:
            self._attend(subject)


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
