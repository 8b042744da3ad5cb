"""Credentials of a run: its id, its key, and the TLS certificate that its processes share.

Programs of different runs that know one *authkey* derive the same credentials from it, see
:meth:`Credentials.of_authkey`. From the authkey they derive the certificate's private key too; each
signs a certificate of its own with it, which the others accept.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
from typing import Any

from fiber._base import values

# order of the group of P-256 (FIPS 186-4, D.1.2.3)
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@values.frozen(kw_only=True)
class Credentials:
    """Secrets shared by the processes of one run. Not in ``repr``; never put in argv or logs."""

    #: id of the run, eight hexadecimal digits; sixteen where derived from an authkey
    run_id: str
    #: 32 bytes; knowledge of it is proved by HMAC before anything is unpickled
    key: bytes = values.field(repr=False)
    #: PEM certificate of the run; made with its first TLS listener
    certificate: str | None = values.field(default=None, repr=False)
    #: PEM private key of that certificate
    private_key: str | None = values.field(default=None, repr=False)
    #: seed from which the private key is derived, for programs that share an authkey
    seed: bytes | None = values.field(default=None, repr=False)

    @classmethod
    def new(cls) -> Credentials:
        """Make the credentials of a new run."""
        return cls(run_id=secrets.token_hex(4), key=secrets.token_bytes(32))

    @classmethod
    def of_authkey(cls, authkey: bytes) -> Credentials:
        """Derive the credentials of an authkey: the same in every program that knows it.

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
        certificate, private_key = _self_signed(self.seed)
        return values.evolve(self, certificate=certificate, private_key=private_key)

    def derived(self) -> Credentials:
        """Return these credentials with a seed, so that any process of the run makes its certificate."""
        seed = _expand(self.key, b"certificate", 40)
        return values.evolve(self, certificate=None, private_key=None, seed=seed)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, for a job's private bootstrap data."""
        return {
            "run_id": self.run_id,
            "key": self.key.hex(),
            "certificate": self.certificate,
            "private_key": self.private_key,
            "seed": None if self.seed is None else self.seed.hex(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Credentials:
        """Read what :meth:`to_json` returned."""
        return cls(
            run_id=data["run_id"],
            key=bytes.fromhex(data["key"]),
            certificate=data["certificate"],
            private_key=data["private_key"],
            seed=None if data["seed"] is None else bytes.fromhex(data["seed"]),
        )


@functools.lru_cache(maxsize=16)
def _of_authkey(authkey: bytes) -> Credentials:
    # scrypt, since authkeys may be guessable: a guess costs 16 MB and some hundredths of a second
    master = hashlib.scrypt(authkey, salt=b"fiber authkey 1", n=2**14, r=8, p=1, dklen=32)
    return Credentials(
        run_id=_expand(master, b"name", 8).hex(),
        key=_expand(master, b"key", 32),
        # eight bytes more than the key has, against modulo bias (FIPS 186-4, B.4.1)
        seed=_expand(master, b"certificate", 40),
    )


def _expand(master: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand of RFC 5869 with SHA-256."""
    found, block = b"", b""
    for number in range(1, -(-size // 32) + 1):
        block = hmac.digest(master, block + b"fiber " + label + bytes([number]), "sha256")
        found += block
    return found[:size]


def _self_signed(seed: bytes | None) -> tuple[str, str]:
    """An ECDSA P-256 certificate that is its own authority, CN ``fiber``; its key may be derived.

    mbed TLS, which nng uses, refuses Ed25519 keys and a name other than the one dialled with. Valid
    at all times that X.509 has, since it is known by its key and the clocks of hosts are off; the
    end is the one of RFC 5280, section 4.1.2.5, for none.
    """
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if seed is None:
        key = ec.generate_private_key(ec.SECP256R1())
    else:
        key = ec.derive_private_key(int.from_bytes(seed, "big") % (_ORDER - 1) + 1, ec.SECP256R1())
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
