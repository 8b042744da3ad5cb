"""A certificate authority of the cluster's own, and the API server's certificate."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Certificates"]

_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@attrs.frozen
class Certificates:
    """What clients trust, and what the server shows."""

    #: PEM of the authority, as pods find it in ``ca.crt``
    authority: str
    #: PEM files of the server
    certificate: Path
    key: Path

    @classmethod
    def make(
        cls, folder: Path, addresses: Sequence[str], *, identified: bool = True
    ) -> Certificates:
        """Make both.

        Args:
            folder: where the files go.
            addresses: where the server listens.
            identified: False for certificates without key identifiers, as Amazon's clusters have.
        """
        authority_key = ec.generate_private_key(ec.SECP256R1())
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes-ca")])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
        issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        root = _builder(issuer, issuer, authority_key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        leaf = (
            _builder(subject, issuer, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        if identified:
            root = root.add_extension(identifier, critical=False)
            root = root.add_extension(_usage(signs=True), critical=True)
            leaf = leaf.add_extension(issued_by, critical=False)
        pem = serialization.Encoding.PEM
        signed = [one.sign(authority_key, hashes.SHA256()) for one in (root, leaf)]
        made = cls(
            signed[0].public_bytes(pem).decode(), folder / "server.crt", folder / "server.key"
        )
        made.certificate.write_bytes(signed[1].public_bytes(pem))
        made.key.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return made

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    today = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - dt.timedelta(hours=1))
        .not_valid_after(today + dt.timedelta(days=2))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
