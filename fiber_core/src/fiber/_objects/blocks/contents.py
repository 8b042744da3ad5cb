"""Contents of a block: a value as bytes, arrays as views of them; unpickled once in each process.

The bytes are a frame's payload (see :func:`fiber._wire.frames.pack`): the pickle, and every buffer
of the value out of band.
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
    """Make the segments of a value: its pickle, and its buffers out of band, uncopied.

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
    """Load the value of a block's bytes.

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
        # pickled by value below
        except Exception:  # noqa: S110 - the other pickler raises
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
    # an array with gaps would be pickled in band, and be writable
    whole = array.flags.c_contiguous or array.flags.f_contiguous
    return (array if whole else array.copy()).__reduce_ex__(5)


def _view(view: memoryview) -> Any:
    whole = view if view.c_contiguous else view.tobytes()
    return _load_view, (pickle.PickleBuffer(whole), view.format, view.shape)


def _load_view(buffer: memoryview, form: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(buffer).cast("B")
    if not flat.nbytes:
        # an empty view cannot be cast to a shape with a zero
        return flat if form == "B" else flat.cast(form)  # type: ignore[call-overload] # any format
    return flat.cast(form, shape)  # type: ignore[call-overload,no-any-return] # any format


class BlockBody(Protocol):
    """A block, its owner's or a remote one."""

    def body(self) -> memoryview:
        """Its bytes, fetched if this process does not have them.

        Raises:
            PeerLostError: the owner's process is gone.
        """


class LazyValue:
    """The value of a block, unpickled on first use; kept as long as a handle has it."""

    def __init__(self, block: BlockBody) -> None:
        self._block = block
        self._lock = threading.RLock()
        self._values: list[Any] = []

    def value(self) -> Any:
        """The value.

        Raises:
            PeerLostError: the owner's process was gone before the bytes were fetched.
            Exception: what unpickling it raised.
        """
        if not self._values:
            with self._lock:
                if not self._values:
                    self._values.append(read(self._block.body()))
        return self._values[0]


class ValueCache:
    """The one :class:`LazyValue` of a block in this process, while a handle has it.

    Args:
        block: the block.
        keeps: True to keep it without a handle as well, until :meth:`forget`.
    """

    def __init__(self, block: BlockBody, *, keeps: bool = False) -> None:
        self._block = block
        self._lock = threading.Lock()
        self._lazy: weakref.ref[LazyValue] | None = None
        self._keeps = keeps
        self._kept: LazyValue | None = None

    def lazy_value(self) -> LazyValue:
        """The lazy value, the same for all handles in this process."""
        with self._lock:
            found = None if self._lazy is None else self._lazy()
            if found is None:
                found = LazyValue(self._block)
                self._lazy = weakref.ref(found)
            if self._keeps:
                self._kept = found
            return found

    def forget(self) -> None:
        """Keep it for handles only, from now on."""
        with self._lock:
            self._keeps = False
            # deleted with this frame, when the lock is free: __del__ of a value is user code
            found, self._kept = self._kept, None
        del found
