"""Private bytes of a job that was started as a program: where they are, and how they are encrypted.

The variable :data:`VARIABLE` names the place; ``docs/design/remote-jobs.md`` has the table of
forms.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import MutableMapping
from pathlib import Path

from fiber.exceptions import StartError

__all__ = ["KEY_BYTES", "VARIABLE", "read_private", "seal"]

#: environment variable with the place of a job's private bytes
VARIABLE = "FIBER_BOOTSTRAP"

#: length of a key for :func:`seal`
KEY_BYTES = 32

_FORMS = "fd:<number>, stdin, stdin:<length>, file:<path> or sealed:<path of the key>:<text>"
_NONCE = 12


def read_private(environ: MutableMapping[str, str] | None = None) -> bytes:
    """Read the private bytes, once, and remove the traces of where they were.

    Args:
        environ: the environment that has the variable; this process's by default.

    Raises:
        StartError: the variable makes no sense, or nothing can be read at the place it names.
    """
    # a default of os.environ would have help() print it, secrets included
    environ = os.environ if environ is None else environ
    where = environ.pop(VARIABLE, "")
    scheme, _, rest = where.partition(":")
    try:
        if scheme == "fd" and rest.isdigit():
            with open(int(rest), "rb") as stream:
                return stream.read()
        if scheme == "stdin" and (rest.isdigit() or where == "stdin"):
            return _read_stdin(int(rest) if rest else None)
        if scheme == "file" and rest:
            return _read_file(Path(rest))
        if scheme == "sealed" and rest.rpartition(":")[0]:
            path, _, text = rest.rpartition(":")
            where = f"sealed:{path}:..."
            return _unseal(Path(path).read_bytes(), text)
    except (OSError, ValueError) as error:
        msg = f"{VARIABLE} is {where!r}, and nothing can be read there: {error}"
        raise StartError(msg) from error
    msg = f"{VARIABLE} is {where!r}, expected {_FORMS}; this module is started by fiber only"
    raise StartError(msg)


def seal(private: bytes, key: bytes) -> str:
    """Encrypt private bytes (AES-GCM); the text is for ``sealed:<path>:<text>``.

    For platforms that can give a file to all jobs of a run and only text to each.

    Args:
        private: the bytes.
        key: :data:`KEY_BYTES` random bytes, of one run.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE)
    return base64.urlsafe_b64encode(nonce + AESGCM(key).encrypt(nonce, private, None)).decode()


def _unseal(key: bytes, text: str) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        data = base64.urlsafe_b64decode(text)
        return AESGCM(key).decrypt(data[:_NONCE], data[_NONCE:], None)
    except (InvalidTag, binascii.Error) as error:
        msg = "they were sealed with another key"
        raise ValueError(msg) from error


def _read_stdin(length: int | None) -> bytes:
    data = b""
    while length is None or len(data) < length:
        # of the descriptor itself: an object would read on into what is not ours
        more = os.read(0, 1 << 16 if length is None else length - len(data))
        if not more:
            break
        data += more
    if length is not None and len(data) < length:
        msg = f"standard input ended after {len(data)} of {length} bytes"
        raise OSError(msg)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return data


def _read_file(path: Path) -> bytes:
    data = path.read_bytes()
    # a mounted secret cannot be removed
    with contextlib.suppress(OSError):
        path.unlink()
    return data
