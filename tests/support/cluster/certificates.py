"""An authority, and certificates of servers and users that it signs."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@attrs.frozen
class Certificates:
    """PEM files, ``NAME.crt`` and ``NAME.key``; the authority's own are called ``ca``."""

    folder: Path
    #: False for certificates without key identifiers, as Amazon's clusters have
    identified: bool = True
    _key: ec.EllipticCurvePrivateKey = attrs.field(factory=_new_key, init=False)

    def __attrs_post_init__(self) -> None:
        extensions = [x509.BasicConstraints(ca=True, path_length=None), _SIGNS]
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._sign("ca", _subject("kubernetes-ca"), self._key, extensions, identifier)

    def path(self, name: str) -> str:
        """The path of a file."""
        return str(self.folder / name)

    def make(
        self, name: str, user: str, group: str | None = None, addresses: Sequence[str] = ()
    ) -> None:
        """Make the files of a user, or of a server at some addresses."""
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        extensions: list[x509.ExtensionType] = [x509.ExtendedKeyUsage(uses)]
        if addresses:
            names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            extensions.append(x509.SubjectAlternativeName(names))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        self._sign(name, _subject(user, group), _new_key(), extensions, issuer)

    def _sign(
        self,
        name: str,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extensions: Sequence[x509.ExtensionType],
        identifier: x509.ExtensionType,
    ) -> None:
        now = dt.datetime.now(dt.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_subject("kubernetes-ca"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=3))
        )
        for extension in (*extensions, identifier) if self.identified else extensions:
            is_critical = isinstance(extension, (x509.BasicConstraints, x509.KeyUsage))
            builder = builder.add_extension(extension, is_critical)
        signed = builder.sign(self._key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        Path(self.path(f"{name}.crt")).write_bytes(signed.public_bytes(pem))
        form, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        Path(self.path(f"{name}.key")).write_bytes(key.private_bytes(pem, form, plain))


def _subject(user: str, group: str | None = None) -> x509.Name:
    words = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group is not None:
        words.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(words)
