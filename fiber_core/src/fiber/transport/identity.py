"""Who a run is: its key, and the certificate that its processes show each other."""

from __future__ import annotations

import secrets
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Credentials:
    """What only the processes of one run know. Never shown by ``repr``, never in argv or logs."""

    #: the run, eight hexadecimal digits
    run_id: str
    #: 32 random bytes, proved by HMAC before anything is unpickled
    key: bytes = attrs.field(repr=False)
    #: PEM certificate of the run, made when its first TLS listener is
    certificate: str | None = attrs.field(default=None, repr=False)
    #: PEM private key of that certificate
    private_key: str | None = attrs.field(default=None, repr=False)

    @classmethod
    def new(cls) -> Credentials:
        """Credentials of a new run."""
        return cls(run_id=secrets.token_hex(4), key=secrets.token_bytes(32))

    def with_certificate(self) -> Credentials:
        """The same run with a certificate, its own or a fresh one."""
        if self.certificate is not None:
            return self
        certificate, private_key = _self_signed()
        return attrs.evolve(self, certificate=certificate, private_key=private_key)

    def to_json(self) -> dict[str, Any]:
        """For the private bootstrap of a job."""
        return {
            "run_id": self.run_id,
            "key": self.key.hex(),
            "certificate": self.certificate,
            "private_key": self.private_key,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Credentials:
        """What :meth:`to_json` wrote."""
        return cls(
            run_id=data["run_id"],
            key=bytes.fromhex(data["key"]),
            certificate=data["certificate"],
            private_key=data["private_key"],
        )


def _self_signed() -> tuple[str, str]:
    """An ECDSA P-256 certificate that is its own authority, CN ``fiber``.

    mbed TLS, which nng uses, refuses Ed25519 keys and a name other than the one dialled with. Valid
    from ten minutes ago, so that a clock somewhat behind still accepts it.
    """
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
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
