"""One map, apply or imap on its way: its function, its items, and who wants the results."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fiber._tasks import arguments, protocol
from fiber._tasks.protocol import Mode
from fiber._wire import codec, frames
from fiber.exceptions import WorkerCrashedError
from fiber.model.job import Attempt

if TYPE_CHECKING:
    from fiber._tasks.shared_payload import Laid, Repeated

#: what an item's own code may raise while it is pickled; on no thread is it a wish to end fiber
_OF_AN_ITEM = (Exception, SystemExit, GeneratorExit)


class Sink(Protocol):
    """Where the results of a call go; called under the pool's lock, must not wait."""

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcomes of the items from ``start`` on.

        ``errors`` has the failed ones by index; None where an error of the same unit before it
        kept the item from running.
        """

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """The items were given up."""

    def done(self) -> None:
        """Every item has its outcome."""

    def broken(self, error: BaseException) -> None:
        """The pool cannot go on; nothing more will come."""


class Unsendable:
    """Takes the place of an item that cannot be sent; its error is the item's outcome."""

    def __init__(self, error: BaseException) -> None:
        #: the error, as what pickles to it with its traceback
        self.error = codec.with_traceback(error)

    def pickled(self) -> bytearray:
        """As bytes."""
        return bytearray().join(codec.dumps(self))


class Call:
    """What the dispatcher keeps of a call until it is done."""

    def __init__(
        self,
        number: int,
        function: Any,
        mode: Mode,
        sink: Sink,
        *,
        items: Sequence[Any] | None,
        chunksize: int | None,
        retry: bool,
    ) -> None:
        self.number = number
        self.mode = mode
        self.sink = sink
        self.chunksize = chunksize
        self.retry = retry
        #: told of the items that are sent to a worker, each time they are
        self.begun: Callable[[int, int], None] | None = None
        #: objects that the pickles of this call keep alive, let go when it is done
        self.releases: list[Any] = []
        try:
            with codec.carrying(self):
                #: segments of the pickled function
                self.function: list[frames.Buffer] = codec.dumps(function)
        except BaseException:
            self.release()
            raise
        #: where the function lies in memory that workers map, if it does
        self.laid: Laid | None = None
        #: what the function is called by
        self.digest = protocol.digest(self.function)
        #: mean size of an item, once it was seen
        self.item_bytes = 0.0
        self._all = items
        self._some: dict[int, Any] = {}
        self._count = 0 if items is None else len(items)
        #: True where it grew and does no more
        self.closed = False
        #: where what comes again in its arguments is laid; None where nothing is
        self.repeated: Repeated | None = None

    @property
    def kind(self) -> str:
        """Calls of the same function share their measured durations."""
        return self.digest.hex()

    @property
    def grows(self) -> bool:
        """True where items are added bit by bit."""
        return self._all is None and not self.closed

    @property
    def count(self) -> int:
        """Items known so far."""
        return self._count

    def extend(self, items: Iterable[Any]) -> int:
        """Add items of a call that grows; how many."""
        before = self._count
        for item in items:
            self._some[self._count] = item
            self._count += 1
        return self._count - before

    def forget(self, start: int, stop: int) -> None:
        """The items have their outcomes and are not needed again."""
        if self._all is None:
            for index in range(start, stop):
                self._some.pop(index, None)

    def encode(
        self, start: int, stop: int, *, near: bool = False
    ) -> tuple[int, list[frames.Buffer]]:
        """The arguments of the items as segments, with the mode to send them in.

        Args:
            start: first of the items.
            stop: behind the last of them.
            near: True for a worker that may map memory of this process.
        """
        items = self._slice(start, stop)
        try:
            with codec.carrying(self):
                place = self.repeated.place if near and self.repeated is not None else None
                units = self._units(items, start)
                apart, segments = arguments.encode(units, place)
                return self.mode | Mode.APART if apart else self.mode, segments
        except _OF_AN_ITEM:
            # found item by item
            return self._encode_singly(items)

    def _units(self, items: list[Any], start: int) -> list[list[Any]]:
        """Items that stay together, and whose tasks may change what the others of them get."""
        chunk = self.chunksize or 1
        first = chunk - start % chunk
        if len(items) <= first or arguments.are_constant(items):
            return [items]
        return [items[:first], *(items[at : at + chunk] for at in range(first, len(items), chunk))]

    def encode_singly(self, start: int, stop: int) -> tuple[int, list[frames.Buffer]]:
        """The same with each item pickled by itself, for a worker that could not read them."""
        return self._encode_singly(self._slice(start, stop))

    def _encode_singly(self, items: Sequence[Any]) -> tuple[int, list[frames.Buffer]]:
        pickles = [pickle.PickleBuffer(self._pickled(item)) for item in items]
        return self.mode | Mode.SINGLY, codec.dumps(pickles)

    def _pickled(self, item: Any) -> bytearray:
        try:
            with codec.carrying(self):
                # no bytes, or whoever gets an array of it could not write to it
                return bytearray().join(codec.dumps(item))
        except _OF_AN_ITEM as error:
            return Unsendable(error).pickled()

    def crashed(self, index: int, attempts: Sequence[Attempt]) -> WorkerCrashedError:
        """What becomes of an item that was given up."""
        times = f"{len(attempts)} times" if len(attempts) != 1 else "once"
        text = f"task {index} was given up: its worker died {times} while it ran alone"
        if not self.retry:
            text = f"task {index} may have begun on a worker that died, and must not run twice"
        lines = [text, *(f"  {number}. {one}" for number, one in enumerate(attempts, 1))]
        return WorkerCrashedError("\n".join(lines), attempts=attempts)

    def on_release(self, action: Any) -> None:
        """Have ``action`` called when the call is done."""
        self.releases.append(action)

    def release(self) -> bool:
        """Let go of what its pickles kept alive; True where there was anything."""
        releases, self.releases = self.releases, []
        for action in releases:
            action()
        return bool(releases)

    def _slice(self, start: int, stop: int) -> list[Any]:
        if self._all is not None:
            return list(self._all[start:stop])
        return [self._some[index] for index in range(start, stop)]
