"""Results and errors of items, from the worker to the pool, pickled so that none affects another.

Results of short tasks travel together, and arrive as if each had been sent alone. A result that its
function goes on changing (a buffer that an environment returns again and again) is pickled before
the next task runs. A result that cannot be unpickled fails alone. Both cost nothing where results are
numbers, strings or tuples of them, which cannot change and can always be unpickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from fiber._wire import codec, frames
from fiber.exceptions import WireError

_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})


class Outcomes:
    """Worker side: results and errors of consecutive items, until they are sent."""

    __slots__ = ("_errors", "_mutable", "_packed", "_values", "packed_bytes")

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._errors: dict[int, Any] = {}
        #: positions of results that may still change, or that may fail to unpickle
        self._mutable: list[int] = []
        #: positions of results that were pickled by themselves
        self._packed: list[int] = []
        #: size of those
        self.packed_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: Any) -> None:
        """The next item has a result."""
        kind = type(value)
        if kind not in _PLAIN and not (kind is tuple and _PLAIN.issuperset(map(type, value))):
            self._mutable.append(len(self._values))
        self._values.append(value)

    def fail(self, error: BaseException, count: int = 1) -> None:
        """The next item raised; or that many have this error as their outcome."""
        carried, position = codec.with_traceback(error), len(self._values)
        self._errors.update(dict.fromkeys(range(position, position + count), carried))
        self._values.extend([None] * count)

    def skip(self) -> None:
        """The next item did not run, since one of its unit before it raised."""
        self._errors[len(self._values)] = None
        self._values.append(None)

    def pickle_mutable(self) -> None:
        """Pickle, each by itself, the results that the next task may change."""
        for position in self._mutable:
            value = self._values[position]
            try:
                # a bytearray, since arrays that are unpickled from bytes are read-only
                pickled = bytearray().join(_dumps(value))
            except Exception as failure:
                self._values[position] = None
                self._errors[position] = _unsendable(failure, value)
            else:
                self._values[position] = pickle.PickleBuffer(pickled)
                self._packed.append(position)
                self.packed_bytes += len(pickled)
        self._mutable.clear()

    def encode(self) -> list[frames.Buffer]:
        """All of it as segments."""
        if len(self._values) == 1 and self._mutable:
            try:
                # alone, a result affects no other, and its large buffers need not be copied
                return _dumps((self._values, self._errors, self._packed))
            except Exception as failure:
                self._errors[0] = _unsendable(failure, self._values[0])
                self._values[0] = None
                self._packed.clear()
        self.pickle_mutable()
        return codec.dumps((self._values, self._errors, self._packed))


def _dumps(value: Any) -> list[frames.Buffer]:
    # references in a result are held for its receiver, not for as long as this process lives
    before = codec.set_envelope(codec.MessageEnvelope())
    try:
        return codec.dumps(value)
    finally:
        codec.set_envelope(before)


def _unsendable(failure: Exception, value: Any) -> Any:
    return codec.with_traceback(codec.encoding_error(failure, value))


class ReceivedOutcomes:
    """Owner side: the outcomes of the items from ``first`` up to ``stop``."""

    __slots__ = ("_errors", "_failure", "_first", "_values")

    def __init__(self, body: memoryview, first: int, stop: int) -> None:
        self._first = first
        self._failure: BaseException | None = None
        self._values: list[Any] = []
        self._errors: dict[int, BaseException | None] = {}
        try:
            self._values, self._errors, packed = codec.loads(body)
            if len(self._values) != stop - first:
                msg = f"{len(self._values)} results for {stop - first} items"
                raise WireError(msg)
        # a result's own code may raise anything, and must not end the thread that serves all
        except BaseException as failure:
            self._failure = _unreadable(failure)
            return
        for position in packed:
            try:
                self._values[position] = codec.loads(memoryview(self._values[position]))
            except BaseException as failure:
                self._values[position] = None
                self._errors[position] = _unreadable(failure)

    def of(self, start: int, stop: int) -> tuple[Sequence[Any], Mapping[int, BaseException | None]]:
        """Values of the items from ``start`` up to ``stop``, and errors by item."""
        if self._failure is not None:
            return [None] * (stop - start), dict.fromkeys(range(start, stop), self._failure)
        first = self._first
        errors: dict[int, BaseException | None] = {}
        for position, error in self._errors.items():
            if start <= first + position < stop:
                errors[first + position] = error
        return self._values[start - first : stop - first], errors


def _unreadable(failure: BaseException) -> BaseException:
    message = f"a result could not be read: {type(failure).__name__}: {failure}"
    return codec.encoding_error(failure, message)


def read_error(body: memoryview) -> BaseException:
    """The error that a worker reports of itself."""
    try:
        error = codec.loads(body)
    except Exception as failure:
        return failure
    return error if isinstance(error, BaseException) else WireError(repr(error))
