"""Frame layout between a supervisor and the holders of its channels; no sockets.

A frame is a 4-byte big-endian length and a pickle. Peers hold inherited descriptors, which proves
them, so pickles are read; still only values of Fiber's own are made from them, for a supervisor
must never import a user's module by way of a message.
"""

from __future__ import annotations

import enum
import io
import pickle
import struct
from collections.abc import Iterator
from typing import Any

from fiber.exceptions import WireError

__all__ = ["HEADER", "MAX_FRAME", "Decoder", "encode"]

#: bytes of payload that a frame can have; what a job is given at its start travels in one
MAX_FRAME = 1 << 30

#: the length before each payload
HEADER = struct.Struct("!I")


def encode(message: object) -> bytes:
    """A message as a frame.

    Raises:
        WireError: it is larger than a frame can be, or cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(message)
    except Exception as error:
        msg = f"a {type(message).__name__} for the supervisor cannot be pickled: {error}"
        raise WireError(msg) from error
    payload = buffer.getvalue()
    if len(payload) > MAX_FRAME:
        msg = (
            f"a {type(message).__name__} of {len(payload)} bytes is larger than the {MAX_FRAME} "
            "that a supervisor accepts; send big values through a queue or a pipe"
        )
        raise WireError(msg)
    return HEADER.pack(len(payload)) + payload


class Decoder:
    """Turns the bytes of a stream back into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes as they were read."""
        self._buffer += data

    def messages(self) -> Iterator[Any]:
        """Yield every complete message.

        Raises:
            WireError: the stream makes no sense; nothing more can be read from it.
        """
        buffer = self._buffer
        start = 0
        try:
            while len(buffer) - start >= HEADER.size:
                (length,) = HEADER.unpack_from(buffer, start)
                if length > MAX_FRAME:
                    msg = f"a frame announces {length} bytes, more than the {MAX_FRAME} allowed"
                    raise WireError(msg)
                end = start + HEADER.size + length
                if len(buffer) < end:
                    break
                payload = bytes(memoryview(buffer)[start + HEADER.size : end])
                start = end
                yield _decode(payload)
        finally:
            del buffer[:start]

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)


def _decode(payload: bytes) -> Any:
    try:
        return _Unpickler(io.BytesIO(payload)).load()
    except Exception as error:
        msg = f"a frame of {len(payload)} bytes cannot be read: {error}"
        raise WireError(msg) from error


def _member(kind: Any, name: str) -> enum.Enum:
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        msg = f"{kind!r} has no members"
        raise pickle.UnpicklingError(msg)
    return kind[name]


def _is_ours(module: str) -> bool:
    return module.startswith(("fiber.model.", "fiber._agent.supervisor."))


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        # called for what is no plain value: refused here, where its sender is told
        kind = value if isinstance(value, type) else type(value)
        if not _is_ours(kind.__module__) and value is not getattr:
            msg = f"{value!r} is no plain value"
            raise pickle.PicklingError(msg)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            # early releases of Python 3.11 pickle the members of enums with it
            return _member
        if _is_ours(module) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        msg = f"{module}.{name} is no part of this protocol"
        raise pickle.UnpicklingError(msg)
