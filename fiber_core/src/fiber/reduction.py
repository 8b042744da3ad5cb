"""How objects are pickled on their way between processes, for programs that take part in it."""

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
        """Say how objects of a type are pickled, as :func:`copyreg.pickle` does."""
        copyreg.pickle(type, reduce)

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> memoryview:
        """The pickle of an object, as it would travel."""
        stream = io.BytesIO()
        dump(obj, stream, protocol)
        return stream.getbuffer()

    loads = pickle.loads


register = ForkingPickler.register


def dump(obj: Any, file: IO[bytes], protocol: int | None = None) -> None:
    """Write an object to a file, as it would travel."""
    file.write(codec.pickled(obj) if protocol is None else pickle.dumps(obj, protocol))


class AbstractReducer:
    """The stdlib's class of this name: what a reducer offers."""

    def __init__(self, *args: Any) -> None:
        """Take what the stdlib's takes, and do nothing with it."""

    ForkingPickler = ForkingPickler
    register = register
    dump = dump
