"""The first lines of a stream, proved by the run's key, and the records that follow; pure, no sockets.

::

    landing                                 hub, which opened the stream
    fiber-ferry 2 NONCE                 ->
                                        <-  WORDS… NONCE' HMAC(key, "hub", JOB, NONCE, NONCE', WORDS)
    READY HMAC(key, "landing", …)       ->

A proof holds for the job for which the stream was opened, JOB, and for both nonces, so whoever passes
the lines on to the landing of another job is found out. What follows travels in :class:`Records`, so
that nobody in between can say anything of his own. It depends on the words:

======================== =================================================================
``OFFER``                the stream waits. The landing says ``TAKE SID RECEIVED ROUTE`` when it
                         has a connection for it; the hub answers ``OK RECEIVED`` or ``NO why``
``DIAL SID RECEIVED TO`` the hub has a connection for ``TO``, host and port; the landing answers
                         ``OK RECEIVED`` or ``NO why``
``PROBE COUNT``          a byte follows, and then so many; the landing answers each with ``DONE``
======================== =================================================================

After ``OK`` both sides are a :class:`~fiber._tunnel.crossing.Session`. A SID that is known
already is a connection whose stream broke. ``PING`` on a stream that waits is a sign of life.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Iterable, Iterator

from fiber._wire.handshake import mac
from fiber.exceptions import HandshakeError, WireError

__all__ = ["LONGEST", "HubSide", "LandingSide", "Records", "number", "split"]

#: bytes of the longest line
LONGEST = 1024
_NAME = "fiber-ferry"
_VERSION = "2"
_DIGITS = 18
#: bytes of the largest record, and of the code behind each
_RECORD = 2**18
_CODE = 32
_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


def split(line: str, word: str, count: int) -> list[str]:
    """The arguments of a line.

    Raises:
        WireError: it is another line, or has another number of them.
    """
    found = line.split(" ")
    if found[0] != word or len(found) != count + 1:
        msg = f"{line[:100]!r} on a stream where {word} was expected"
        raise WireError(msg)
    return found[1:]


def number(text: str) -> int:
    """A count in a line.

    Raises:
        WireError: it is none.
    """
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
        msg = f"{text[:40]!r} on a stream is no number"
        raise WireError(msg)
    return int(text)


class _Codes:
    """The codes of the records of one direction, one after another."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def next(self, *record: bytes | memoryview) -> bytes:
        """The code of the next record."""
        made = self._keyed.copy()
        made.update(_NUMBER.pack(self._count))
        self._count += 1
        for part in record:
            made.update(part)
        return made.digest()


class Records:
    """What both sides send after the greeting: pieces of it, each with a code that only they can make.

    ::

        length, bytes, HMAC(key of the direction, number of the record, length, bytes)

    So nothing can be changed, added, repeated or put in another order. That nothing is cut off in the
    end is the affair of who reads it.

    Args:
        sent: key of what this side sends.
        received: key of what the other one sends.
    """

    def __init__(self, sent: bytes, received: bytes) -> None:
        self._sent = _Codes(sent)
        self._received = _Codes(received)
        self._partial = bytearray()

    def protect(self, pieces: Iterable[bytes]) -> list[bytes | memoryview]:
        """What is sent for some bytes."""
        found: list[bytes | memoryview] = []
        record: list[memoryview] = []
        room = _RECORD
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                record.append(rest[:room])
                rest = rest[room:]
                room -= len(record[-1])
                if not room:
                    found += self._protect(record)
                    record, room = [], _RECORD
        return [*found, *self._protect(record)] if record else found

    def _protect(self, record: list[memoryview]) -> list[bytes | memoryview]:
        length = _LENGTH.pack(sum(map(len, record)))
        return [length, *record, self._sent.next(length, *record)]

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What is received; yields the bytes that were sent.

        Raises:
            WireError: it is not what the other side has sent.
        """
        self._partial += data
        position = 0
        while len(self._partial) - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._partial, position)
            if size > _RECORD:
                msg = f"a record of {size} bytes on a stream"
                raise WireError(msg)
            begin = position + _LENGTH.size
            end = begin + size
            if len(self._partial) < end + _CODE:
                break
            position = end + _CODE
            body = bytes(memoryview(self._partial)[begin:end])
            code = self._received.next(_LENGTH.pack(size), body)
            if not hmac.compare_digest(code, self._partial[end:position]):
                msg = "a record on a stream is not of whoever greeted us"
                raise WireError(msg)
            yield body
        del self._partial[:position]


class _Side:
    """What both sides of a greeting have in common."""

    def __init__(self, key: bytes, job: str) -> None:
        self._key = key
        self._job = job
        self._nonce = secrets.token_hex(16)
        #: what follows the greeting travels in these; None until the other side has proved itself
        self.records: Records | None = None

    def _mac(self, label: bytes, *said: str) -> bytes:
        parts = (self._job, *said)
        return mac(self._key, b"fiber ferry " + label, *(part.encode() for part in parts))


class HubSide(_Side):
    """The side that opened the stream.

    Args:
        key: of the run.
        job: into which it was opened.
        words: what the stream is for.
    """

    def __init__(self, key: bytes, job: str, words: str) -> None:
        super().__init__(key, job)
        self._words = words
        self._theirs: str | None = None

    def receive(self, line: str) -> str | None:
        """Take a line; the next to send.

        Raises:
            HandshakeError: whoever is there is no landing of this job.
            WireError: it talks nonsense.
        """
        if self._theirs is None:
            version, self._theirs = split(line, _NAME, 2)
            if version != _VERSION:
                msg = (
                    f"the landing talks version {version} and we {_VERSION}; use one fiber for both"
                )
                raise HandshakeError(msg)
            proof = self._mac(b"hub", self._theirs, self._nonce, self._words).hex()
            return f"{self._words} {self._nonce} {proof}"
        (proof,) = split(line, "READY", 1)
        said = self._theirs, self._nonce, self._words
        if not hmac.compare_digest(proof.encode(), self._mac(b"landing", *said).hex().encode()):
            msg = "the landing could not prove that it is of this run and job"
            raise HandshakeError(msg)
        self.records = Records(self._mac(b"to landing", *said), self._mac(b"to hub", *said))
        return None


class LandingSide(_Side):
    """The side into which the stream was opened.

    Args:
        key: of the run.
        job: whose side this is.
    """

    def __init__(self, key: bytes, job: str) -> None:
        super().__init__(key, job)
        #: what the stream is for, once the hub has proved that it is of this run
        self.words: str | None = None

    def hello(self) -> str:
        """The first line."""
        return f"{_NAME} {_VERSION} {self._nonce}"

    def receive(self, line: str) -> str:
        """Take the hub's line; the answer.

        Raises:
            HandshakeError: it is not of this run, or meant for another job.
        """
        offered, _, proof = line.rpartition(" ")
        words, _, theirs = offered.rpartition(" ")
        said = self._nonce, theirs, words
        if not hmac.compare_digest(proof.encode(), self._mac(b"hub", *said).hex().encode()):
            msg = (
                "whoever opened a stream could not prove that it is of this run and meant this job"
            )
            raise HandshakeError(msg)
        self.words = words
        self.records = Records(self._mac(b"to hub", *said), self._mac(b"to landing", *said))
        return f"READY {self._mac(b'landing', *said).hex()}"
