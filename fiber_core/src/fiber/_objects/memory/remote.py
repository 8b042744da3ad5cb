"""A block of memory of another process, read and written by messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from fiber._objects.memory import protocol
from fiber._objects.memory.protocol import MOST, Op
from fiber._objects.remote import Remote
from fiber._wire.client import Pending
from fiber._wire.frames import Buffer
from fiber.exceptions import TransportError

# messages on their way at most
_WINDOW = 8


class RemoteMemory(Remote):
    """One for each block and process."""

    def read(self, begin: int, size: int) -> bytes:
        """Some of its bytes.

        Raises:
            PeerLostError: its process is gone, or the block is.
        """
        asked: Iterator[Sequence[Buffer]] = (
            [protocol.READ.pack(Op.READ, begin + at, min(MOST, size - at))]
            for at in range(0, size, MOST)
        )
        return b"".join(self._exchange(asked))

    def write(self, parts: Iterable[tuple[int, Buffer]]) -> None:
        """Write bytes, each part from where it says; they are there when this returns.

        Raises:
            PeerLostError: its process is gone, or the block is.
        """
        said: Iterator[Sequence[Buffer]] = (
            [protocol.WRITE.pack(Op.WRITE, begin + at), bytes(data[at : at + MOST])]
            for begin, data in parts
            for at in range(0, len(data), MOST)
        )
        for _ in self._exchange(said):
            pass

    def _exchange(self, messages: Iterator[Sequence[Buffer]]) -> Iterator[memoryview]:
        """The answers to messages, a few of which are on their way at a time."""
        waiting: deque[Pending] = deque()
        try:
            for message in messages:
                waiting.append(self.call(message))
                if len(waiting) == _WINDOW:
                    yield _answer(waiting.popleft())
            while waiting:
                yield _answer(waiting.popleft())
        except TransportError as error:
            raise self.loss(error) from error


def _answer(pending: Pending) -> memoryview:
    pending.wait()
    return pending.result()
