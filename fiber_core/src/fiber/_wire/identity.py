"""Credentials of a run: its id, its key, and the TLS certificate that its processes share.

Programs of different runs that know one *authkey* derive an id and a key from it, see
:meth:`Credentials.of_authkey`. An authkey may be guessable, so nothing that follows from it is shown
to anybody who has not proved it: each listener makes a certificate of its own, which a dialer is
shown by the listener, and the key is used in a key exchange alone (``handshake``).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
from typing import Any

from fiber._base import values


@values.frozen(kw_only=True)
class Credentials:
    """Secrets shared by the processes of one run. Not in ``repr``; never put in argv or logs."""

    #: id of the run, eight hexadecimal digits; sixteen where derived from an authkey
    run_id: str
    #: 32 bytes; knowledge of it is proved by HMAC before anything is unpickled
    key: bytes = values.field(repr=False)
    #: PEM certificate of the run, made with its first TLS listener; or of the listener alone
    certificate: str | None = values.field(default=None, repr=False)
    #: PEM private key of that certificate
    private_key: str | None = values.field(default=None, repr=False)
    #: True where listeners have certificates of their own, and the key is proved by a key exchange
    is_exchanged: bool = False

    @classmethod
    def new(cls) -> Credentials:
        """Make the credentials of a new run."""
        return cls(run_id=os.urandom(4).hex(), key=os.urandom(32))

    @classmethod
    def of_authkey(cls, authkey: bytes) -> Credentials:
        """Derive the credentials of an authkey: the same in every program that knows it.

        Its id stands in pickled addresses of objects, as ``name@url``.

        Raises:
            ValueError: the authkey is empty.
        """
        if not authkey:
            msg = "the authkey is empty; give both programs the same secret bytes"
            raise ValueError(msg)
        return _of_authkey(bytes(authkey))

    def with_certificate(self) -> Credentials:
        """Return these credentials with a certificate, made if there is none."""
        if self.certificate is not None:
            return self
        certificate, private_key = _self_signed()
        return values.evolve(self, certificate=certificate, private_key=private_key)

    def exchanged(self) -> Credentials:
        """Return the run's id and key, for listeners beside its endpoint.

        These cannot have the run's certificate, which not all of its processes know.
        """
        return values.evolve(self, certificate=None, private_key=None, is_exchanged=True)

    @property
    def public_id(self) -> str:
        """What a hello says of the credentials to one who has proved nothing."""
        return "" if self.is_exchanged else self.run_id

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for a job's private bootstrap data."""
        return {
            "run_id": self.run_id,
            "key": self.key.hex(),
            "certificate": self.certificate,
            "private_key": self.private_key,
            "is_exchanged": self.is_exchanged,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Credentials:
        """Read what :meth:`to_json` returned."""
        return cls(
            run_id=data["run_id"],
            key=bytes.fromhex(data["key"]),
            certificate=data["certificate"],
            private_key=data["private_key"],
            is_exchanged=data["is_exchanged"],
        )


@functools.lru_cache(maxsize=16)
def _of_authkey(authkey: bytes) -> Credentials:
    # scrypt, since the id is in pickles: a guess costs 16 MB and some hundredths of a second
    master = hashlib.scrypt(authkey, salt=b"fiber authkey 1", n=2**14, r=8, p=1, dklen=32)
    return Credentials(
        run_id=_expand(master, b"name")[:8].hex(),
        key=_expand(master, b"key"),
        is_exchanged=True,
    )


def _expand(master: bytes, label: bytes) -> bytes:
    """HKDF-Expand of RFC 5869 with SHA-256, for its first block of 32 bytes."""
    return hmac.digest(master, b"fiber " + label + b"\x01", "sha256")


def _self_signed() -> tuple[str, str]:
    """An ECDSA P-256 certificate that is its own authority, CN ``fiber``, and its private key.

    mbed TLS, which nng uses, refuses Ed25519 keys and a name other than the one dialled with. Valid
    at all times that X.509 has, since it is known by its key and the clocks of hosts are off; the
    end is the one of RFC 5280, section 4.1.2.5, for none.
    """
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fiber")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc))
        .not_valid_after(dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )
