"""Worker side: asks for entries, runs them in order and sends outcomes as they come.

:class:`Worker` is the loop on the main thread, :class:`Batch` one entry while it runs,
:class:`FunctionCache` the functions that the pool sent, by digest.

The main thread reads the link itself, which saves a thread hop for each entry. While it is inside a
long task, :class:`ControlReader` reads the link on another thread: it answers revokes and sends the
outcomes of earlier tasks. It starts after ``Timing.unread`` seconds of one entry, so short entries
do not pay for it.

Apart from ``fiber._workers.pool_process``, so that it knows a link and no runtime.
"""

from __future__ import annotations

import contextlib
import functools
import select
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fiber._base.entry_points import load_object
from fiber._base.interpreter import resident
from fiber._tasks import protocol
from fiber._tasks.call import Unsendable, name_of
from fiber._tasks.protocol import PLAIN, Mode, Outcomes, Tasks
from fiber._tasks.shared_payload import MappedArguments, PayloadNotFoundError, PayloadStore
from fiber._wire import codec, frames
from fiber._wire.descriptors import await_readable
from fiber._wire.frames import Kind, Message
from fiber._wire.link import Link
from fiber.exceptions import FiberError, PeerLostError
from fiber.model import Timing

if TYPE_CHECKING:
    from fiber._tasks.shared_payload import SharedPayload

#: seconds that results wait at most for others, to be sent in one batch, or as long as the entry took
#: until the last ones were sent: a message costs 100 µs of CPU on both sides, and an owner of many workers
#: gives long entries
_MAX_DELAY = 0.002
#: most bytes of waiting results that had to be pickled ahead of time
_MAX_PACKED_BYTES = 256 * 2**10
#: and most of one entry that waits for others
_MAX_WAITING_BYTES = 4 * 2**10


class Batch:
    """One entry while it runs, and how far it may go; shared with the control reader.

    Args:
        tasks: its head.
        send: sends the body of a DONE message.
        check_messages: reads the link after a long unit, before the next one begins; called with
            this batch.
        long_unit: seconds of one: it may have held the interpreter all the time, so that the control
            reader could not read the link.
        errors: those of a task that are its outcome; any other ends the worker.
        former: the entry before, whose outcomes wait for those of this one; None for none.
    """

    def __init__(
        self,
        tasks: Tasks,
        send: Callable[[int, Sequence[frames.Buffer]], None],
        check_messages: Callable[[Batch], None],
        long_unit: float,
        errors: type[BaseException] = Exception,
        former: Batch | None = None,
    ) -> None:
        self.tasks = tasks
        self._send = send
        self._check_messages = check_messages
        self._long_unit = long_unit
        self._errors = errors
        #: True where the last unit was a long one
        self.was_long = False
        # of all that follows
        self._lock = threading.Lock()
        self._outcomes = Outcomes()
        # heads and outcomes that wait, of entries before, and of this one once it is done; since when
        self._waiting: list[tuple[bytes, Outcomes]] = []
        if former is not None:
            self._waiting, self._since = former.hand_over()
        #: True where its outcomes wait for those of the next entry
        self.waits = False
        #: the first item of the unit that runs, without the lock
        self.index = tasks.start
        # the first item that was handed back; the stop of the entry where none was
        self._limit = tasks.stop
        # the first item whose outcome was not sent, and the first of the running unit
        self._from = self._unit = tasks.start
        # when the entry, its first unsent item and its running unit began
        self._start = self._began = self._unit_began = time.perf_counter()
        if former is None:
            self._since = self._start

    def hand_back(self) -> int:
        """Give up whole units that have not begun; returns one past the last item that is kept."""
        tasks = self.tasks
        with self._lock:
            limit = self._limit
            # first no item may begin: may_run() waits for the lock for any index noted from now on,
            # so the index read below is the last one that has begun
            self._limit = tasks.start
            begun = (self.index - tasks.start) // tasks.chunk + 1
            self._limit = min(limit, tasks.start + begun * tasks.chunk)
            return self._limit

    def may_run(self, index: int) -> bool:
        """Note that an item is about to run; False where it was handed back."""
        self.index = index
        if index < self._limit:
            return True
        with self._lock:
            return index < self._limit

    def run(self, call: Callable[[Any], Any], items: Sequence[Any]) -> None:
        """Run the items one after another, up to the end or to the part that was handed back."""
        start, chunk, last = self.tasks.start, self.tasks.chunk, len(items) - 1
        may_run, lock, errors = self.may_run, self._lock, self._errors
        skip_to = 0
        for offset, item in enumerate(items):
            # the first unit is kept whenever it is asked back
            if offset and offset % chunk == 0 and not may_run(start + offset):
                break
            if offset < skip_to:
                with lock:
                    self._outcomes.skip()
            else:
                try:
                    value = call(item)
                except errors as error:
                    with lock:
                        self._outcomes.fail(error)
                    skip_to = offset - offset % chunk + chunk
                else:
                    with lock:
                        if type(value) in PLAIN:
                            self._outcomes.append(value)
                        else:
                            self._outcomes.add(value)
            # the last outcomes are sent with the credit for another entry
            if (offset + 1) % chunk == 0 and offset != last:
                self._unit_ended(start + offset + 1)
                if self.was_long:
                    self._check_messages(self)
        with lock:
            began, self._unit_began = self._unit_began, time.perf_counter()
            self.was_long = self._unit_began - began > self._long_unit
            if self.tasks.more:
                self._decide()
            self._send_done(self._limit, 0 if self.tasks.more else 1)

    def flush(self) -> None:
        """Send the outcomes that wait, from the control reader's thread, as the running unit takes long."""
        with self._lock:
            if self._from < self._unit == self._from + len(self._outcomes):
                self._send_done(self._unit, 0)
                self._began = self._unit_began
            else:
                self._send_waiting()

    def fail(self, error: BaseException) -> None:
        """Send an error as the outcome of every item: the function or the items cannot be unpickled."""
        with self._lock:
            self._outcomes.fail(error, self.tasks.stop - self.tasks.start)
            self._unit_began = time.perf_counter()
            if self.tasks.more:
                self._decide()
            self._send_done(self.tasks.stop, 0 if self.tasks.more else 1)

    def hand_over(self) -> tuple[list[tuple[bytes, Outcomes]], float]:
        """What waits for the next entry's outcomes, and since when; the control reader may still look at this one."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            return waiting, self._since

    def send_waiting(self) -> None:
        """Send the outcomes that wait for those of the next entry."""
        with self._lock:
            self._send_waiting()

    def _decide(self) -> None:
        """Decide whether the last outcomes wait for those of the next entry, which goes with this one."""
        if self._unit_began - self._since < _MAX_DELAY:
            # results that the next task may change
            self._outcomes.pickle_mutable()
            self.waits = self._outcomes.packed_bytes < _MAX_WAITING_BYTES

    def _unit_ended(self, stop: int) -> None:
        with self._lock:
            began, self._unit, self._unit_began = self._unit_began, stop, time.perf_counter()
            self.was_long = self._unit_began - began > self._long_unit
            if self._unit_began - self._began < max(_MAX_DELAY, self._began - self._start):
                # results that the next task may change are pickled before it runs
                self._outcomes.pickle_mutable()
                if self._outcomes.packed_bytes < _MAX_PACKED_BYTES:
                    return
            self._send_done(stop, 0)
            # sending does not count as time of the next items
            self._began = self._unit_began = time.perf_counter()

    def _send_done(self, stop: int, credits_: int) -> None:
        seconds = self._unit_began - self._began
        head = protocol.pack_done(self.tasks.entry, self._from, stop, seconds, credits_)
        outcomes = self._outcomes
        # also behind the last one: what a task has returned is not held until the next one
        self._from, self._outcomes = stop, Outcomes()
        if not (self.waits or self._waiting):
            # no call more than needed: for each task
            self._send(0, [head, *outcomes.encode()])
            return
        self._waiting.append((head, outcomes))
        if not self.waits:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._send(len(waiting) - 1, protocol.done(waiting))


K = TypeVar("K")
V = TypeVar("V")

#: bytes of pickled functions that a worker keeps
PICKLED = 256 * 2**20
#: bytes, as pickled, of the functions that are ready to be called
READY = 64 * 2**20
#: bytes that an entry costs besides its value
_OVERHEAD = 1024
#: no call's number, and its function
_NO_CALL = -1, None


class FunctionCache:
    """Functions that the pool sent: pickled by digest, unpickled anew for each call; bounded in bytes.

    A function that was dropped is requested from the pool again.

    Args:
        pickled: bytes of pickles that are kept; the last one is, whatever its size.
        ready: bytes, as pickled, of functions that are kept unpickled, likewise.
    """

    def __init__(self, pickled: int = PICKLED, ready: int = READY) -> None:
        self._pickles: _Bounded[bytes, bytes | SharedPayload] = _Bounded(pickled)
        # with their digests
        self._ready: _Bounded[int, tuple[Any, bytes]] = _Bounded(ready)
        #: the call that was asked for last, and its function
        self.last: tuple[int, Any] = _NO_CALL

    def __contains__(self, digest: object) -> bool:
        return digest in self._pickles

    def put(self, digest: bytes, pickled: bytes | SharedPayload) -> None:
        """Keep a pickled function."""
        self._pickles.put(digest, pickled, _size(pickled))

    def get(self, call: int) -> Any:
        """The unpickled function of a call, or None where it must be loaded."""
        found = self._ready.get(call)
        if found is None:
            return None
        self.last = call, found[0]
        return found[0]

    def load(self, call: int, digest: bytes) -> Any:
        """Unpickle the function of a call; None where it is not kept.

        Raises:
            Exception: what unpickling it raised.
        """
        pickled = self._pickles.get(digest)
        if pickled is None:
            return None
        function = _unpickled(pickled)
        self._ready.put(call, (function, digest), _size(pickled))
        self.last = call, function
        return function

    def loader(self, digest: bytes) -> Callable[[], Any] | None:
        """A function that unpickles a kept one anew, or None where it is not kept."""
        pickled = self._pickles.get(digest)
        return None if pickled is None else functools.partial(_unpickled, pickled)

    def forget(self, digest: bytes) -> None:
        """Drop a function."""
        self._pickles.drop(lambda key, _: key == digest)
        self._ready.drop(lambda _, ready: ready[1] == digest)
        self.last = _NO_CALL

    def forget_calls(self) -> None:
        """Drop all unpickled functions; the pickled ones stay."""
        self._ready.clear()
        self.last = _NO_CALL


def _unpickled(pickled: bytes | SharedPayload) -> Any:
    # a copy: a call that changes a captured array must not change it for the next call
    if isinstance(pickled, bytes):
        return codec.loads(memoryview(bytearray(pickled)))
    # copied page by page, and only the pages that are written to
    return codec.loads(pickled.private())


def _size(pickled: bytes | SharedPayload) -> int:
    return len(pickled) if isinstance(pickled, bytes) else pickled.size


class _Bounded(Generic[K, V]):
    """LRU cache bounded by the size of its values; the last value stays whatever its size."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def get(self, key: K) -> V | None:
        """The value of a key, which is the most recently used one now; or None."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Set the value of a key."""
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
        """Drop the values for which the predicate is true."""
        for key in [key for key, (value, _) in self._held.items() if is_unwanted(key, value)]:
            self._size -= self._held.pop(key)[1]

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
        self._size = 0


T = TypeVar("T")


class ControlReader(Generic[T]):
    """Thread that reads the link while one entry (the subject) takes long.

    Args:
        on_message: called with the subject when the link is readable while the subject runs.
        on_interval: called with the subject after so many seconds, and now and then from then on.
        interval: these seconds.
    """

    def __init__(
        self,
        on_message: Callable[[T], None],
        on_interval: Callable[[T], None],
        interval: float,
    ) -> None:
        self._on_message = on_message
        self._on_interval = on_interval
        self._interval = interval
        self._changed = threading.Condition()
        self._subject: T | None = None
        self._fds: tuple[int, ...] = ()
        self._idle = True
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, subject: T, fds: tuple[int, ...]) -> None:
        """The main thread begins with ``subject``; ``fds`` are the descriptors of its link."""
        self._fds = fds
        self._subject = subject
        # a busy thread sees the new subject at its next check; only an idle one is woken
        if self._idle:
            with self._changed:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._run, name="fiber-control-reader", daemon=True
                    )
                    try:
                        thread.start()
                    except RuntimeError:
                        # no more threads are started: messages wait until the subject is done
                        return
                    self._thread = thread
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
                self._changed.wait(self._interval)
            if self._subject is subject and not self._closed:
                self._on_interval(subject)
                self._check_messages(subject)

    def _check_messages(self, subject: T) -> None:
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        # the main thread does not notify when a subject ends, so this may notice late
        is_readable = await_readable(poll, self._fds, self._interval)
        if is_readable and self._subject is subject:
            self._on_message(subject)


# as numbers: an operation on a member of an enum takes as long as reading an entry
_APPLY, _STARMAP, _SINGLY = int(Mode.APPLY), int(Mode.STARMAP), int(Mode.SINGLY)
_APART, _COPIED = int(Mode.APART), int(Mode.COPIED)


class DescriptorsLostError(FiberError):
    """A task has closed or replaced descriptors of the worker that ran it."""


class Worker:
    """Runs the entries of one pool in the calling thread until it is retired.

    Args:
        link: to the pool.
        target: number of the pool in messages.
        redial: makes another link in place of a lost one.
        store: finds payloads in shared memory of this host; None for none.
        errors: those of a task that are its outcome; any other ends the worker.
        timing: durations of the run.
    """

    def __init__(
        self,
        link: Link,
        target: int,
        redial: Callable[[], Link],
        store: PayloadStore | None = None,
        *,
        errors: type[BaseException] = Exception,
        timing: Timing,
    ) -> None:
        self._target = target
        self._use(link)
        self._store = store
        #: True where a payload of the pool could not be mapped
        self._cannot_map = False
        self._redial = redial
        self._functions = FunctionCache()
        self._mapped = MappedArguments(store)
        #: messages that the control reader read while an entry ran
        self._inbox: deque[Message] = deque()
        self._reading = threading.Lock()
        #: True where the link was checked after the last task: nothing of users' has run since
        self._is_checked = False
        #: True where the last unit was a long one
        self._was_long = False
        self._running: Batch | None = None
        #: the entry before, while its outcomes wait for those of the next one
        self._former: Batch | None = None
        #: its function
        self._called: Any = None
        self._unread = timing.unread
        self._errors = errors
        self._control_reader: ControlReader[Batch] = ControlReader(
            self._read_control, self._flush_results, timing.unread
        )

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
                    if message.kind is Kind.TASKS:
                        if self._was_long and not self._link.is_drained:
                            self._read_behind(message)
                        else:
                            self._run(message.body)
                    elif message.kind is Kind.FUNCTION:
                        self._store_function(message)
                    elif message.kind is Kind.RETIRE:
                        return
                    else:
                        self._answer(message)
                except PeerLostError as error:
                    if not self._link.is_intact:
                        # another link would not restore other descriptors that were closed, and the
                        # task that did it would run again and again: the worker's death counts
                        msg = "a task has closed or replaced descriptors of its worker"
                        raise DescriptorsLostError(msg) from error
                    # other workers run what this one held; the pool knows it by a new link
                    self._inbox.clear()
                    self._former = None
                    self._was_long = False
                    self._functions.forget_calls()
                    self._link.close()
                    self._use(self._redial())
                    self._ask(protocol.CREDITS)
        finally:
            self._control_reader.close()

    def describe_task(self) -> str:
        """The function and the item that run, for people; "" for none."""
        batch, called = self._running, self._called
        return "" if batch is None else f"{name_of(called)}[{batch.index}]"

    def report_broken(self, error: BaseException) -> None:
        """Send BROKEN: the initializer failed."""
        self._link.send(Kind.BROKEN, self._target, 0, codec.dumps(codec.with_traceback(error)))

    def _ask(self, credits_: int) -> None:
        self._link.send(Kind.ASK, self._target, 0, [protocol.ask(credits_)])

    def _use(self, link: Link) -> None:
        self._link = link
        # sends the number and body of a DONE, but not into a file whose descriptor a task has put in place of
        # the link's
        self._send_done = functools.partial(link.send, Kind.DONE, self._target, checks=True)

    def _receive(self) -> Message:
        # where the control reader still looks at the last entry, it waits for the lock in vain: that one
        # does not run any more
        with self._reading:
            if self._inbox:
                return self._inbox.popleft()
            # what goes with an entry comes with it; it may have been handed back
            if self._former is not None:
                self._send_former()
            message = self._link.receive(checks=not self._is_checked)
            self._is_checked = True
            assert message is not None
            if message.id or message.kind is not Kind.TASKS:
                return message
            self._keep(message)
            return self._inbox.popleft()

    def _keep(self, message: Message) -> None:
        """Put a message into the inbox; one of several entries as one for each."""
        if message.id or message.kind is not Kind.TASKS:
            self._inbox.append(message)
            return
        self._inbox.extend(
            Message(Kind.TASKS, message.target, number, body)
            for number, body in protocol.split(message.body)
        )

    def _read_behind(self, entry: Message) -> None:
        """Read what came behind an entry during a long unit: it may have been asked back."""
        self._was_long = False
        self._inbox.appendleft(entry)
        self._read_buffered(None)

    def _answer(self, message: Message) -> None:
        if message.kind is Kind.REVOKE:
            # nothing runs and everything before it in the pipe is done
            number = protocol.read_entry(message.body)
            self._send_kept(number, 2**63, None)
        elif message.kind is Kind.LOOK:
            self._send_seen()

    def _send_former(self) -> None:
        """Send the outcomes that wait for those of the next entry, if there are any."""
        former, self._former = self._former, None
        if former is not None:
            former.send_waiting()

    def _send_kept(self, number: int, stop: int, current: Batch | None) -> None:
        # the outcomes of what is done come first: the pool takes it that there are no others
        if current is not None:
            current.flush()
        else:
            self._send_former()
        self._link.send(Kind.KEPT, self._target, 0, [protocol.kept(number, stop)])

    def _send_seen(self) -> None:
        self._link.send(Kind.SEEN, self._target, 0, [protocol.seen(resident())])

    def _copied(self, batch: Batch, mode: int, first: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A callable for items of which each unit has a copy of the function; that of the first one is there."""
        tasks = batch.tasks
        load = self._functions.loader(tasks.digest)
        if load is None:
            # the call is over
            return first
        unit, call = tasks.start, first

        def run(item: Any) -> Any:
            nonlocal unit, call
            if batch.index != unit:
                unit, call = batch.index, _adapted(mode, load())
            return call(item)

        return run

    def _function(self, tasks: Tasks) -> Any:
        """Load the function of an entry, and request it where it is not here."""
        function = self._functions.load(tasks.call, tasks.digest)
        if function is None:
            is_over = not self._request_function(tasks.digest)
            function = _no_op if is_over else self._functions.load(tasks.call, tasks.digest)
        return function

    def _request_function(self, digest: bytes) -> bool:
        """Request a function and wait for it; False where its call is over."""
        number = protocol.SHARED if self._cannot_map else 0
        self._link.send(Kind.MISSING, self._target, number, [digest])
        while True:
            # functions that come meanwhile are kept as well
            message = self._await(Kind.FUNCTION, None)
            if self._store_function(message) == digest:
                if self._cannot_map and message.id == protocol.SHARED:
                    return self._request_function(digest)
                return digest in self._functions

    def _await(self, kind: Kind, number: int | None) -> Message:
        """The next message of a kind and number; earlier ones stay in the inbox, in order."""
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

    def _store_function(self, message: Message) -> bytes:
        """Handle FUNCTION: keep a function, or forget it where the digest comes alone; returns the digest."""
        digest, pickled = protocol.read_function(message.body)
        if not pickled:
            self._functions.forget(digest)
        elif message.id != protocol.SHARED:
            self._functions.put(digest, bytes(pickled))
        else:
            payload = None if self._store is None else self._store.find(bytes(pickled))
            if payload is not None:
                self._functions.put(digest, payload)
            self._cannot_map = payload is None
        return digest

    def _run(self, body: memoryview) -> None:
        tasks, body = protocol.read_tasks(body)
        # by what is unpickled and run now
        self._is_checked = False
        former, self._former = self._former, None
        batch = Batch(
            tasks, self._send_done, self._read_buffered, self._unread, self._errors, former
        )
        mode = tasks.mode & ~(_APART | _COPIED)
        is_copied = tasks.mode & _COPIED
        try:
            number, function = self._functions.last
            if is_copied:
                function = self._function(tasks)
            elif number != tasks.call:
                function = self._functions.get(tasks.call)
                if function is None:
                    function = self._function(tasks)
            try:
                if not tasks.mode & _APART:
                    items: Sequence[Any] = codec.loads(body)
                else:
                    items = protocol.read_arguments(body, self._mapped.finder_for(tasks.call))
            except Exception as error:
                mode, items = self._items_again(tasks, error)
                mode &= ~_COPIED
        except Exception as error:
            if isinstance(error, PeerLostError) and (self._link.lost or not self._link.is_intact):
                raise
            batch.fail(error)
            self._former = batch if batch.waits else None
            self._is_checked = True
            return
        call = _adapted(mode, function) if mode else function
        if is_copied and tasks.stop - tasks.start > tasks.chunk:
            call = self._copied(batch, mode, call)
        self._called = function
        if tasks.context:
            # by name: few programs want spans
            in_spans = load_object("fiber._watch.spans:in_spans")
            call, items = in_spans(call, items, function, tasks)
        self._running = batch
        while self._link.buffered:
            # no descriptor is readable for these
            self._read_control(batch)
        # of one unit nothing can be handed back, and what waits behind it is read after it
        is_watched = tasks.stop - tasks.start > tasks.chunk or tasks.more or former is not None
        if is_watched:
            self._control_reader.watch(batch, self._link.fds)
        try:
            batch.run(call, items)
            # since its last outcomes were sent
            self._is_checked = True
        finally:
            self._running = self._called = None
            if is_watched:
                self._control_reader.rest()
        self._was_long = batch.was_long
        if batch.waits:
            self._former = batch
        if self._was_long and self._inbox:
            self._read_buffered(None)

    def _read_buffered(self, current: Batch | None) -> None:
        """Read the messages that came during a long unit, before anything revoked is begun."""
        with self._reading:
            while (message := self._link.receive(timeout=0)) is not None:
                self._handle_control(message, current)
                if self._link.is_drained:
                    return

    def _items_again(self, tasks: Tasks, error: Exception) -> tuple[int, Sequence[Any]]:
        """Request the items of an entry each pickled by itself; raises the error where that makes no difference."""
        if isinstance(error, PayloadNotFoundError):
            # from now on the pool sends the bytes
            self._link.send(Kind.MISSING, self._target, protocol.SHARED, [tasks.digest])
        elif tasks.stop - tasks.start == 1:
            raise error
        # an item that cannot be unpickled must not fail the others
        self._link.send(Kind.UNREAD, self._target, 0, [protocol.entry(tasks.entry)])
        again, body = protocol.read_tasks(self._await(Kind.TASKS, tasks.entry).body)
        return again.mode, codec.loads(body)

    # -- on the control reader's thread, while an entry takes long

    def _flush_results(self, batch: Batch) -> None:
        # outcomes of earlier tasks do not wait for the end of a long one
        with contextlib.suppress(PeerLostError):
            batch.flush()

    def _read_control(self, batch: Batch) -> None:
        with self._reading:
            if self._running is not batch:
                return
            try:
                message = self._link.receive(timeout=0)
                if message is not None:
                    self._handle_control(message, batch)
            except PeerLostError:
                # the main thread notices after its task, and dials again
                return

    def _handle_control(self, message: Message, current: Batch | None) -> None:
        """Answer a REVOKE or a LOOK; put any other message into the inbox."""
        if message.kind is Kind.LOOK:
            self._send_seen()
            return
        if message.kind is not Kind.REVOKE:
            self._keep(message)
            return
        number = protocol.read_entry(message.body)
        self._send_kept(number, self._revoke(number, current), current)

    def _revoke(self, number: int, current: Batch | None) -> int:
        if current is not None and current.tasks.entry == number:
            return current.hand_back()
        for position, waiting in enumerate(self._inbox):
            # the number of a TASKS message is its entry's
            if waiting.kind is Kind.TASKS and waiting.id == number:
                tasks, _ = protocol.read_tasks(waiting.body)
                del self._inbox[position]
                if not tasks.more:
                    self._ask(1)
                return tasks.start
        # finished before: everything was kept
        return 2**63


def _no_op(*_: Any, **__: Any) -> None:
    """Stand-in for the function of a call that is over."""


def _adapted(mode: int, function: Any) -> Callable[[Any], Any]:
    """A callable for one item as it was sent, by mode."""
    call: Callable[[Any], Any] = function
    how = mode & ~_SINGLY
    if how == _STARMAP:

        def call(item: Any) -> Any:
            return function(*item)

    elif how == _APPLY:

        def call(item: Any) -> Any:
            return function(*item[0], **item[1])

    return _unpickling(call) if mode & _SINGLY else call


def _unpickling(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def unpickling(pickled: Any) -> Any:
        item = codec.loads(memoryview(pickled))
        if isinstance(item, Unsendable):
            raise item.error
        return call(item)

    return unpickling
