"""Pickling of objects between processes; as ``multiprocessing.reduction``."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from typing import IO, Any

from fiber._wire import codec

__all__ = ["HAVE_SEND_HANDLE", "ForkingPickler", "dump", "register"]

#: descriptors cannot be sent: another machine could do nothing with them
HAVE_SEND_HANDLE = False


class ForkingPickler(pickle.Pickler):
    """The stdlib's class of this name, over the tables that Fiber pickles by."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

    @classmethod
    def register(cls, type: type[Any], reduce: Callable[[Any], Any]) -> None:  # noqa: A002 - the stdlib's name
        """Register a reducer for a type, as :func:`copyreg.pickle` does."""
        copyreg.pickle(type, reduce)

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> memoryview:
        """Pickle of an object as Fiber sends it."""
        stream = io.BytesIO()
        dump(obj, stream, protocol)
        return stream.getbuffer()

    loads = pickle.loads


register = ForkingPickler.register


def dump(obj: Any, file: IO[bytes], protocol: int | None = None) -> None:
    """Write the pickle of an object, as Fiber sends it, to a file."""
    file.write(codec.pickled(obj) if protocol is None else pickle.dumps(obj, protocol))


class AbstractReducer:
    """The stdlib's class of this name, with Fiber's functions."""

    def __init__(self, *args: Any) -> None:
        """Accept the stdlib's arguments and ignore them."""

    ForkingPickler = ForkingPickler
    register = register
    dump = dump
