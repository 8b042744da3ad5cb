"""SHA-256 and its HMAC of short messages, without OpenSSL.

``hashlib`` and ``hmac`` load OpenSSL, 3 ms of a program's first result in both of its processes, and a
handshake hashes 1 KB. CPython has the same function in a module of its own, from which ``random`` takes
it too. Large data, key exchanges and everything else stay with ``hashlib``: OpenSSL uses instructions of
the processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
    from hmac import compare_digest
else:
    try:
        # since Python 3.12
        from _sha2 import sha256
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            # an interpreter that was built without it
            from hashlib import sha256
    try:
        # where there is no OpenSSL, hmac takes it from here
        from _operator import _compare_digest as compare_digest
    except ImportError:
        from hmac import compare_digest

__all__ = ["compare_digest", "hmac_sha256", "sha256"]

_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def hmac_sha256(key: bytes, *parts: bytes) -> bytes:
    """HMAC (RFC 2104) with SHA-256 over a message that is given in parts."""
    if len(key) > _BLOCK:
        key = sha256(key).digest()
    key = key.ljust(_BLOCK, b"\0")
    inner = sha256(key.translate(_INNER))
    for part in parts:
        inner.update(part)
    return sha256(key.translate(_OUTER) + inner.digest()).digest()
