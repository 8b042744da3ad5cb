"""SHA-256 and HMAC without OpenSSL are those of the standard library."""

import hashlib
import hmac
import subprocess
import sys

import pytest

from fiber._base.sha256 import compare_digest, hmac_sha256, sha256


# a key shorter than a block, one of a block, and a longer one, which is hashed first
@pytest.mark.parametrize("size", [0, 1, 32, 63, 64, 65, 200])
def test_an_hmac_is_that_of_the_standard_library(size):
    key = bytes(range(256))[256 - size :]

    assert hmac_sha256(key, b"some ", b"", b"message") == hmac.digest(
        key, b"some message", "sha256"
    )


def test_an_hmac_is_that_of_rfc_4231():
    assert hmac_sha256(b"Jefe", b"what do ya want ", b"for nothing?").hex() == (
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )


def test_a_digest_is_that_of_openssl_and_compared_in_whole():
    assert sha256(b"abc").digest() == hashlib.sha256(b"abc").digest()
    assert compare_digest(b"abc", b"abc")
    assert not compare_digest(b"abc", b"abd")


def test_an_interpreter_without_the_modules_uses_the_public_ones():
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('_sha2', '_sha256'))); "
        "from fiber._base import sha256; import hashlib; "
        "print(sha256.sha256 is hashlib.sha256, sha256.hmac_sha256(b'k', b'm').hex())"
    )

    told = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert told.split() == ["True", hmac.digest(b"k", b"m", "sha256").hex()]
