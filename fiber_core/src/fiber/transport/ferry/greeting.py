"""The first lines of a stream, proved by the run's key; pure, no sockets.

::

    landing                                 hub, which opened the stream
    fiber-ferry 1 NONCE                 ->
                                        <-  WORDS… NONCE' HMAC(key, NONCE WORDS NONCE')
    READY HMAC(key, NONCE')             ->

What follows depends on the words:

======================== =================================================================
``OFFER``                the stream waits. The landing says ``TAKE SID RECEIVED ROUTE`` when it
                         has a connection for it; the hub answers ``OK RECEIVED`` or ``NO why``
``DIAL SID RECEIVED TO`` the hub has a connection for ``TO``, host and port; the landing answers
                         ``OK RECEIVED`` or ``NO why``
``PROBE COUNT``          a byte follows, and then so many; the landing answers each with ``DONE``
======================== =================================================================

After ``OK`` both sides are a :class:`~fiber.transport.ferry.session.Session`. A SID that is known
already is a connection whose stream broke. ``PING`` on a stream that waits is a sign of life.
"""

from __future__ import annotations

import hmac
import secrets

from fiber.exceptions import HandshakeError, WireError

__all__ = ["LONGEST", "HubSide", "LandingSide", "number", "split"]

#: bytes of the longest line
LONGEST = 1024
_NAME = "fiber-ferry"
_VERSION = "1"
_DIGITS = 18


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


def _proof(key: bytes, label: bytes, text: str) -> str:
    return hmac.new(key, b"fiber ferry " + label + b"\0" + text.encode(), "sha256").hexdigest()


class HubSide:
    """The side that opened the stream.

    Args:
        key: of the run.
        words: what the stream is for.
    """

    def __init__(self, key: bytes, words: str) -> None:
        self._key = key
        self._words = words
        self._nonce = secrets.token_hex(16)
        self._greeted = False
        #: True once the landing has proved that it is of this run
        self.done = False

    def receive(self, line: str) -> str | None:
        """Take a line; the next to send.

        Raises:
            HandshakeError: whoever is there is no landing of this run.
            WireError: it talks nonsense.
        """
        if not self._greeted:
            version, nonce = split(line, _NAME, 2)
            if version != _VERSION:
                msg = (
                    f"the landing talks version {version} and we {_VERSION}; use one fiber for both"
                )
                raise HandshakeError(msg)
            self._greeted = True
            said = f"{self._words} {self._nonce}"
            return f"{said} {_proof(self._key, b'hub', nonce + ' ' + said)}"
        (proof,) = split(line, "READY", 1)
        if not hmac.compare_digest(proof, _proof(self._key, b"landing", self._nonce)):
            msg = "the landing could not prove that it is of this run"
            raise HandshakeError(msg)
        self.done = True
        return None


class LandingSide:
    """The side into which the stream was opened.

    Args:
        key: of the run.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = secrets.token_hex(16)
        #: what the stream is for, once the hub has proved that it is of this run
        self.words: str | None = None

    def hello(self) -> str:
        """The first line."""
        return f"{_NAME} {_VERSION} {self._nonce}"

    def receive(self, line: str) -> str:
        """Take the hub's line; the answer.

        Raises:
            HandshakeError: it is not of this run.
        """
        said, _, proof = line.rpartition(" ")
        if not hmac.compare_digest(
            proof.encode(), _proof(self._key, b"hub", f"{self._nonce} {said}").encode()
        ):
            msg = "whoever opened a stream could not prove that it is of this run"
            raise HandshakeError(msg)
        self.words, _, nonce = said.rpartition(" ")
        return f"READY {_proof(self._key, b'landing', nonce)}"
