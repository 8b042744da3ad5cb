"""A value as the bytes of a block, and back, its arrays as views of the block."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from typing import Any

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
