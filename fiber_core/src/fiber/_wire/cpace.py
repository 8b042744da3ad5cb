"""CPace: agree on a key by a secret that may be guessable, and give nobody a test for guesses; pure.

The cipher suite CPACE-X25519-SHA512 of draft-irtf-cfrg-cpace-21, the balanced PAKE that the CFRG of
the IRTF recommends. The secret is hashed to a point of Curve25519 (Elligator 2, RFC 9380, section
6.7.1), and with that point as the generator both sides do a Diffie-Hellman exchange. One who does
not know the secret learns from an exchange, as either side of it or in between, at most whether one
guess was right. The two sides have to confirm the key to each other afterwards.

The curve's multiplication is that of ``cryptography``, in constant time and with the check for
points of low order. What is computed here from the secret is blinded, since the time that Python
takes for a number depends on its value.

Apart from :mod:`~fiber._wire.handshake`, so that it can be held against the draft and its test
vectors line by line.
"""

from __future__ import annotations

import hashlib
import secrets

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

#: bytes of a share
SHARE = 32
_NAME = b"CPace255"
# the field of Curve25519, and its coefficient that the draft calls J
_P = 2**255 - 19
_J = 486662
# input block of SHA-512, which the name and the secret fill, so that no other input is hashed with them
_BLOCK = 128


class KeyExchange:
    """One side of one exchange.

    Args:
        secret: what both sides know.
        channel: digest of the connection as this side sees it; other keys result where it differs.
        session: bytes that the initiator has chosen for this exchange.
        scalar: the private scalar, for tests; by default a new one.
    """

    def __init__(
        self, secret: bytes, *, channel: bytes, session: bytes, scalar: bytes | None = None
    ) -> None:
        self._session = session
        self._scalar = (
            X25519PrivateKey.generate()
            if scalar is None
            else X25519PrivateKey.from_private_bytes(scalar)
        )
        #: to be sent to the other side
        self.share = self._multiply(generator(secret, channel=channel, session=session))

    def key_of_initiator(self, share: bytes) -> bytes:
        """The key, on the side that has sent its share first.

        Args:
            share: the share of the other side.

        Raises:
            ValueError: the share is of another length, or a point of low order.
        """
        return session_key(self._session, self._multiply(share), self.share, b"", share, b"")

    def key_of_responder(self, share: bytes) -> bytes:
        """The key, on the other side; see :meth:`key_of_initiator`."""
        return session_key(self._session, self._multiply(share), share, b"", self.share, b"")

    def _multiply(self, point: bytes) -> bytes:
        return self._scalar.exchange(X25519PublicKey.from_public_bytes(point))


def generator(secret: bytes, *, channel: bytes, session: bytes) -> bytes:
    """Point that follows from the secret; as secret as that."""
    padding = bytes(_BLOCK - 1 - len(_joined(_NAME, secret)))
    digest = hashlib.sha512(_joined(_NAME, secret, padding, channel, session)).digest()
    number = int.from_bytes(digest[:SHARE], "little") % 2**255
    blind = 1 + secrets.randbelow(_P - 1)
    # 2 is no square and -1 is one, so this has an inverse
    first = -_J * blind * pow(blind * (1 + 2 * number * number), -1, _P) % _P
    square = blind * blind * first * (first * first + _J * first + 1)
    points = first, (-first - _J) % _P
    # Euler's criterion; 0 cannot be
    return points[pow(square, (_P - 1) // 2, _P) != 1].to_bytes(SHARE, "little")


def session_key(session: bytes, point: bytes, *transcript: bytes) -> bytes:
    """Key that follows from the common point.

    Args:
        session: bytes that the initiator has chosen for this exchange.
        point: the common point.
        transcript: share and associated data of the initiator, then of the responder.
    """
    return hashlib.sha512(_joined(_NAME + b"_ISK", session, point) + _joined(*transcript)).digest()


def _joined(*parts: bytes) -> bytes:
    """``lv_cat`` of the draft for parts of less than 128 bytes, whose length is one byte."""
    if any(len(part) > 127 for part in parts):
        msg = "a part of a key exchange is longer than 127 bytes"
        raise ValueError(msg)
    return b"".join(bytes((len(part),)) + part for part in parts)
