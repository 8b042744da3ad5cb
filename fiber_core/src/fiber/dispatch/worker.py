"""The worker's side: ask for entries, run them in order, hand results back as they come."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from fiber.dispatch import protocol
from fiber.dispatch.attendant import Attendant
from fiber.dispatch.calls import Unsendable
from fiber.dispatch.protocol import Done, Mode, Tasks
from fiber.exceptions import PeerLostError
from fiber.transport import codec
from fiber.transport.link import Link
from fiber.transport.wire import Kind, Message

#: results of tasks that take longer than this are handed over one by one
_SLOW = 0.0002
#: results of shorter ones wait at most this long
_HOLD = 0.001
#: bytes of pickled functions that a worker keeps
_CACHE_BYTES = 256 * 2**20
#: entries that a worker may hold: one running, one behind it
_CREDITS = 2


class Current:
    """The entry being run, and how far it may go; shared with the attendant."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        #: index of the item being run
        self.index = tasks.start
        #: items from here on were handed back; lowered by the attendant under ``lock``
        self.limit = tasks.stop
        self.lock = threading.Lock()

    def hand_back(self) -> int:
        """Give up what has not begun, by whole units; return where the kept part ends."""
        tasks = self.tasks
        with self.lock:
            begun = (self.index - tasks.start) // tasks.chunk + 1
            self.limit = min(self.limit, tasks.start + begun * tasks.chunk)
            return self.limit

    def may_run(self, index: int) -> bool:
        """Note that an item is about to run; False where it was handed back."""
        self.index = index
        if index < self.limit:
            return True
        # the attendant may have read the index just before: its word is final
        with self.lock:
            return index < self.limit


class Worker:
    """Runs the entries of one pool in the calling thread until it is retired."""

    def __init__(self, link: Link, target: int, redial: Callable[[], Link]) -> None:
        self._link = link
        self._target = target
        self._redial = redial
        self._functions: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached = 0
        #: functions unpickled for the calls at hand: a closure is fresh for each call
        self._calls: OrderedDict[int, Any] = OrderedDict()
        #: messages that the attendant read while an entry ran
        self._inbox: deque[Message] = deque()
        self._reading = threading.Lock()
        self._current: Current | None = None
        self._attendant = Attendant(self._attend)

    def run(self) -> None:
        """Work until the pool retires this worker or is gone."""
        try:
            self._ask(_CREDITS)
            while True:
                try:
                    message = self._receive()
                    if message.kind is Kind.RETIRE:
                        return
                    self._take(message)
                except PeerLostError:
                    # what was at hand is run elsewhere; the pool knows this worker by a new link
                    self._inbox.clear()
                    self._calls.clear()
                    self._link.close()
                    self._link = self._redial()
                    self._ask(_CREDITS)
        finally:
            self._attendant.close()

    def report_broken(self, error: BaseException) -> None:
        """Tell the pool that the initializer failed."""
        self._link.send(
            Kind.BROKEN, self._target, 0, codec.dumps(codec.with_traceback(error))
        )

    def _ask(self, credits_: int) -> None:
        self._link.send(Kind.ASK, self._target, 0, [protocol.ask(credits_)])

    def _receive(self) -> Message:
        while True:
            with self._reading:
                if self._inbox:
                    return self._inbox.popleft()
                message = self._link.receive(timeout=0)
            if message is not None:
                return message
            self._link.wait()

    def _take(self, message: Message) -> None:
        if message.kind is Kind.TASKS:
            tasks, items = protocol.read_tasks(message.body)
            self._run(tasks, items)
        elif message.kind is Kind.FUNCTION:
            self._learn(message.body)
        elif message.kind is Kind.REVOKE:
            # nothing runs and everything before it in the pipe is done
            number = protocol.read_entry(message.body)
            self._link.send(Kind.KEPT, self._target, 0, [protocol.kept(number, 2**63)])

    def _learn(self, body: memoryview) -> None:
        name, pickled = bytes(body[: protocol.DIGEST]), bytes(body[protocol.DIGEST :])
        if name not in self._functions:
            self._cached += len(pickled)
        self._functions[name] = pickled
        while self._cached > _CACHE_BYTES and len(self._functions) > 1:
            _, dropped = self._functions.popitem(last=False)
            self._cached -= len(dropped)

    def _function(self, tasks: Tasks) -> Any:
        found = self._calls.get(tasks.call)
        if found is not None:
            return found
        while tasks.digest not in self._functions:
            self._link.send(Kind.MISSING, self._target, 0, [tasks.digest])
            held: list[Message] = []
            while tasks.digest not in self._functions:
                message = self._receive()
                if message.kind is Kind.FUNCTION:
                    self._learn(message.body)
                else:
                    held.append(message)
            self._inbox.extendleft(reversed(held))
        self._functions.move_to_end(tasks.digest)
        function = codec.loads(memoryview(self._functions[tasks.digest]))
        self._calls[tasks.call] = function
        if len(self._calls) > 8:  # noqa: PLR2004 - calls whose entries are interleaved
            self._calls.popitem(last=False)
        return function

    def _run(self, tasks: Tasks, body: memoryview) -> None:
        batch = _Batch(self._link, self._target, tasks)
        try:
            call = _CALLERS[tasks.mode & ~Mode.GUARDED](self._function(tasks))
            if tasks.mode & Mode.GUARDED:
                call = _guarded(call)
            items = codec.loads(body)
        except PeerLostError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the outcome of every item
            batch.fail_all(error)
            return
        current = self._current = Current(tasks)
        if tasks.stop - tasks.start > tasks.chunk or self._inbox:
            self._attendant.watch(current, (self._link.fd, self._link.end_fd))
        try:
            batch.run(call, items, current)
        finally:
            self._current = None
            self._attendant.rest()
        batch.finish(current.limit)

    def _attend(self, current: object) -> None:
        """On the attendant's thread, while an entry takes long: answer what cannot wait."""
        with self._reading:
            if self._current is not current or not isinstance(current, Current):
                return
            message = self._link.receive(timeout=0)
            if message is None:
                return
            if message.kind is not Kind.REVOKE:
                self._inbox.append(message)
                return
            number = protocol.read_entry(message.body)
            stop = self._revoke(number, current)
            self._link.send(Kind.KEPT, self._target, 0, [protocol.kept(number, stop)])

    def _revoke(self, number: int, current: Current) -> int:
        if current.tasks.entry == number:
            return current.hand_back()
        for waiting in self._inbox:
            if waiting.kind is Kind.TASKS:
                tasks, _ = protocol.read_tasks(waiting.body)
                if tasks.entry == number:
                    self._inbox.remove(waiting)
                    self._ask(1)
                    return tasks.start
        # done already: everything of it was kept
        return 2**63


class _Batch:
    """One entry while it runs: outcomes gathered, handed over in time."""

    def __init__(self, link: Link, target: int, tasks: Tasks) -> None:
        self._link = link
        self._target = target
        self._tasks = tasks
        self._from = tasks.start
        self._values: list[Any] = []
        self._errors: dict[int, Any] = {}
        self._began = time.perf_counter()
        self._finished = False

    def run(self, call: Callable[[Any], Any], items: list[Any], current: Current) -> None:
        """Run the items one after another."""
        start, chunk = self._tasks.start, self._tasks.chunk
        clock, values, skip_to = time.perf_counter, self._values, 0
        held = 0
        for offset, item in enumerate(items):
            index = start + offset
            if offset % chunk == 0 and not current.may_run(index):
                return
            if offset < skip_to:
                values.append(None)
                self._errors[len(values) - 1] = None
            else:
                try:
                    values.append(call(item))
                except Exception as error:  # noqa: BLE001 - an exception of the task is its result
                    values.append(None)
                    self._errors[len(values) - 1] = codec.with_traceback(error)
                    skip_to = offset - offset % chunk + chunk
            held += 1
            if (offset + 1) % chunk == 0:
                elapsed = clock() - self._began
                if elapsed >= _HOLD or elapsed >= _SLOW * held:
                    if offset + 1 == len(items):
                        # the last results carry the credit, see finish()
                        return
                    self._hand_over(index + 1, 0)
                    values, held = self._values, 0

    def finish(self, stop: int) -> None:
        """Hand over what is left, with the credit for another entry."""
        self._hand_over(stop, 1)

    def fail_all(self, error: BaseException) -> None:
        """The function or its arguments could not be loaded: that is every item's outcome."""
        carried = codec.with_traceback(error)
        count = self._tasks.stop - self._tasks.start
        self._values = [None] * count
        self._errors = dict.fromkeys(range(count), carried)
        self._hand_over(self._tasks.stop, 1)

    def _hand_over(self, stop: int, credits_: int) -> None:
        now = time.perf_counter()
        done = Done(self._tasks.entry, self._from, stop, now - self._began, credits_)
        values, errors = self._values, self._errors
        try:
            segments = codec.dumps((values, errors or None))
        except Exception:  # noqa: BLE001 - any result's __reduce__ may raise anything
            segments = codec.dumps(_one_by_one(values, errors))
        self._link.send(Kind.DONE, self._target, 0, [done.encode(), *segments])
        self._from, self._values, self._errors = stop, [], {}
        self._began = time.perf_counter()


def _one_by_one(values: list[Any], errors: dict[int, Any]) -> tuple[list[Any], dict[int, Any]]:
    """The outcomes with those results replaced that cannot be pickled."""
    values, errors = list(values), dict(errors)
    for position, value in enumerate(values):
        try:
            codec.dumps(value)
        except Exception as failure:  # noqa: BLE001 - see above
            values[position] = None
            errors[position] = codec.with_traceback(codec.encoding_error(failure, value))
    return values, errors


def _map(function: Any) -> Callable[[Any], Any]:
    return function  # type: ignore[no-any-return]


def _starmap(function: Any) -> Callable[[Any], Any]:
    return lambda item: function(*item)


def _apply(function: Any) -> Callable[[Any], Any]:
    return lambda item: function(*item[0], **item[1])


def _guarded(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def guarded(item: Any) -> Any:
        if isinstance(item, Unsendable):
            raise item.error
        return call(item)

    return guarded


_CALLERS = {Mode.MAP: _map, Mode.STARMAP: _starmap, Mode.APPLY: _apply}
