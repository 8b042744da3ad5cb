"""What a host's agent and the programs that use it say to each other: messages and output.

Messages are JSON, not a supervisor's pickles: an agent outlives the program that has started it, and
is used by programs of other releases.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from fiber._agent.supervisor.messages import Decoder
from fiber.exceptions import WireError

Message = dict[str, Any]

_HEADER = struct.Struct("!IB")
_DATA = struct.Struct("!IBQ")
_JSON, _OUTPUT = 0, 1
#: nothing that either side sends is larger
_LIMIT = 64 * 1024 * 1024

#: first request of a connection; another word where messages get another meaning, so that an agent
#: and a program of releases that do not understand each other find out before anything is done
JOIN = "join"


class Data:
    """A piece of a job's output.

    Args:
        number: which request it answers.
        stream: which output: 0 for stdout, 1 for stderr.
        content: the bytes.
        offset: where the next piece begins in the job's log.
    """

    __slots__ = ("content", "number", "offset", "stream")

    def __init__(self, number: int, stream: int, content: bytes, offset: int) -> None:
        self.number = number
        self.stream = stream
        self.content = content
        self.offset = offset


def pack(message: Message | Data) -> bytes:
    """A message, or a piece of output, as it is sent."""
    if isinstance(message, Data):
        head = _HEADER.pack(_DATA.size + len(message.content), _OUTPUT)
        return head + _DATA.pack(message.number, message.stream, message.offset) + message.content
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(len(body), _JSON) + body


def decoder() -> Decoder:
    """What makes a :class:`Data`, or a message, of each frame."""
    return Decoder(_HEADER, _LIMIT, _decode)


def _decode(body: bytes, kind: int) -> Message | Data:
    try:
        if kind == _OUTPUT:
            number, stream, offset = _DATA.unpack_from(body)
            return Data(number, stream, body[_DATA.size :], offset)
        message = json.loads(body) if kind == _JSON else None
    except (struct.error, ValueError, RecursionError) as error:
        msg = f"a frame of {len(body)} bytes cannot be read: {error}"
        raise WireError(msg) from error
    if not isinstance(message, dict):
        msg = f"a frame of kind {kind} with {len(body)} bytes makes no sense"
        raise WireError(msg)
    return message
