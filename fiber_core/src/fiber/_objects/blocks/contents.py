"""A value as the bytes of a block, and back, its arrays as views of the block.

The value of a block in one process: unpickled once, for all who hold the block there.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import threading
import weakref
from collections import ChainMap
from collections.abc import Callable
from typing import Any, Protocol

from fiber._wire import codec, frames
from fiber._wire.frames import Buffer


def write(value: Any) -> list[Buffer]:
    """Segments of a value: its pickle, and outside of that every buffer that it has, uncopied.

    Raises:
        pickle.PicklingError: neither pickle nor cloudpickle can pickle it.
    """
    buffers: list[Buffer] = []
    try:
        pickled = _pickled(value, lambda buffer: buffers.append(buffer.raw()))
    except Exception as error:
        kind = type(value).__name__
        msg = f"a {kind} cannot be shared, because it cannot be pickled: {error}"
        raise pickle.PicklingError(msg) from error
    return frames.pack(pickled, buffers)


def read(body: memoryview) -> Any:
    """The value.

    Raises:
        Exception: what unpickling it raised.
    """
    pickled, buffers = frames.unpack(body)
    return pickle.loads(pickled, buffers=buffers)


def _pickled(value: Any, place: Callable[[pickle.PickleBuffer], Any]) -> memoryview:
    reducers = _reducers()
    if codec.main_by_reference():
        found: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, 5, buffer_callback=found.append)
        table: Any = ChainMap(reducers, copyreg.dispatch_table)
        pickler.dispatch_table = table
        try:
            pickler.dump(value)
        except RecursionError:
            raise
        # by value, then
        except Exception:  # noqa: S110 - the other one tells
            pass
        else:
            for buffer in found:
                place(buffer)
            return stream.getbuffer()
    base = codec.value_pickler()
    members = {"dispatch_table": ChainMap(reducers, base.dispatch_table)}
    stream = io.BytesIO()
    type("BlockPickler", (base,), members)(stream, place).dump(value)
    return stream.getbuffer()


def _reducers() -> dict[type, Any]:
    found: dict[type, Any] = {memoryview: _view}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found[numpy.ndarray] = _array
    return found


def _array(array: Any) -> Any:
    # one with gaps would be pickled in band, and be everybody's to write to
    whole = array.flags.c_contiguous or array.flags.f_contiguous
    return (array if whole else array.copy()).__reduce_ex__(5)


def _view(view: memoryview) -> Any:
    whole = view if view.c_contiguous else view.tobytes()
    return _load_view, (pickle.PickleBuffer(whole), view.format, view.shape)


def _load_view(buffer: memoryview, form: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(buffer).cast("B")
    if not flat.nbytes:
        # casts of nothing are refused where the shape has a zero
        return flat if form == "B" else flat.cast(form)  # type: ignore[call-overload] # any format
    return flat.cast(form, shape)  # type: ignore[call-overload,no-any-return] # any format


class Readable(Protocol):
    """A block, at its owner or elsewhere."""

    def body(self) -> memoryview:
        """Its bytes, fetched where they are not here yet.

        Raises:
            PeerLostError: the process that it lives in is gone.
        """


class Cell:
    """Keeps the value as long as a handle does, or the block that has read it."""

    def __init__(self, block: Readable) -> None:
        self._block = block
        self._lock = threading.RLock()
        self._values: list[Any] = []

    def value(self) -> Any:
        """The value.

        Raises:
            PeerLostError: its process was gone before it was here.
            Exception: what unpickling it raised.
        """
        if not self._values:
            with self._lock:
                if not self._values:
                    self._values.append(read(self._block.body()))
        return self._values[0]


class Reading:
    """The cell of a block, while anybody has it.

    Args:
        block: the block.
        keeps: True where the cell stays without a handle as well, until :meth:`forget`.
    """

    def __init__(self, block: Readable, *, keeps: bool = False) -> None:
        self._block = block
        self._lock = threading.Lock()
        self._cell: weakref.ref[Cell] | None = None
        self._keeps = keeps
        self._kept: Cell | None = None

    def cell(self) -> Cell:
        """The cell that all handles in this process share."""
        with self._lock:
            found = None if self._cell is None else self._cell()
            if found is None:
                found = Cell(self._block)
                self._cell = weakref.ref(found)
            if self._keeps:
                self._kept = found
            return found

    def forget(self) -> None:
        """Keep the cell no more."""
        with self._lock:
            self._keeps = False
            # dies with this frame, when the lock is free
            found, self._kept = self._kept, None
        del found
