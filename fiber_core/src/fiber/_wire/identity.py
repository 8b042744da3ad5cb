"""Who a run is: its key, and the certificate that its processes show each other.

Programs of different runs that know one *authkey* derive the same key from it, see
:meth:`Credentials.of_authkey`; of the certificate they derive the private key, and each signs one
of its own with it, which the others accept.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
from typing import Any

from fiber._base import values

# of the group that P-256 is
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@values.frozen(kw_only=True)
class Credentials:
    """What only the processes of one run know. Never shown by ``repr``, never in argv or logs."""

    #: the run, eight hexadecimal digits; sixteen where it is derived from an authkey
    run_id: str
    #: 32 random bytes, proved by HMAC before anything is unpickled
    key: bytes = values.field(repr=False)
    #: PEM certificate of the run, made when its first TLS listener is
    certificate: str | None = values.field(default=None, repr=False)
    #: PEM private key of that certificate
    private_key: str | None = values.field(default=None, repr=False)
    #: what that key is derived from, for programs that share no more than an authkey
    seed: bytes | None = values.field(default=None, repr=False)

    @classmethod
    def new(cls) -> Credentials:
        """Credentials of a new run."""
        return cls(run_id=secrets.token_hex(4), key=secrets.token_bytes(32))

    @classmethod
    def of_authkey(cls, authkey: bytes) -> Credentials:
        """What programs share that know one authkey, whatever runs they are of.

        Raises:
            ValueError: it is empty, which is no secret.
        """
        if not authkey:
            msg = "the authkey is empty; give both programs the same secret bytes"
            raise ValueError(msg)
        return _of_authkey(bytes(authkey))

    def with_certificate(self) -> Credentials:
        """The same run with a certificate, its own or a fresh one."""
        if self.certificate is not None:
            return self
        certificate, private_key = _self_signed(self.seed)
        return values.evolve(self, certificate=certificate, private_key=private_key)

    def derived(self) -> Credentials:
        """The same run with a certificate that any of its processes can make, from the key."""
        seed = _expand(self.key, b"certificate", 40)
        return values.evolve(self, certificate=None, private_key=None, seed=seed)

    def to_json(self) -> dict[str, Any]:
        """For the private bootstrap of a job."""
        return {
            "run_id": self.run_id,
            "key": self.key.hex(),
            "certificate": self.certificate,
            "private_key": self.private_key,
            "seed": None if self.seed is None else self.seed.hex(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Credentials:
        """What :meth:`to_json` wrote."""
        return cls(
            run_id=data["run_id"],
            key=bytes.fromhex(data["key"]),
            certificate=data["certificate"],
            private_key=data["private_key"],
            seed=None if data["seed"] is None else bytes.fromhex(data["seed"]),
        )


@functools.lru_cache(maxsize=16)
def _of_authkey(authkey: bytes) -> Credentials:
    # people choose authkeys that can be guessed, so a guess is made dear: 16 MB and some
    # hundredths of a second
    master = hashlib.scrypt(authkey, salt=b"fiber authkey 1", n=2**14, r=8, p=1, dklen=32)
    return Credentials(
        run_id=_expand(master, b"name", 8).hex(),
        key=_expand(master, b"key", 32),
        # eight bytes more than the key has make all keys as likely as can be, as FIPS 186 says
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
    from ten minutes ago, so that a clock somewhat behind still accepts it.
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
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=10))
        .not_valid_after(now + dt.timedelta(days=3650))
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
