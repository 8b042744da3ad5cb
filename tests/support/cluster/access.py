"""Who calls, and what they may: certificates, tokens, roles and reviews."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import ipaddress
import json
import secrets
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .objects import ACCOUNTS, PODS, ROLE_BINDINGS, ROLES, Object, Refused, Resource, Store

__all__ = ["ANONYMOUS", "Authority", "User", "make_certificates"]

_MASTERS = "system:masters"


@attrs.frozen
class User:
    """Whoever a request is from."""

    name: str
    groups: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


class Authority:
    """Issues tokens, reads them, and looks up the roles."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = secrets.token_bytes(32)
        self._users: dict[str, User] = {}

    def user_token(self, name: str, groups: tuple[str, ...] = ()) -> str:
        """A token of a user who is no service account."""
        token = secrets.token_urlsafe(16)
        self._users[token] = User(name, ("system:authenticated", *groups))
        return token

    def account_token(self, namespace: str, name: str, pod: Object | None = None) -> str:
        """A token of a service account, bound to a pod where one is given."""
        account = self._store.need(ACCOUNTS, namespace, name)
        about: Object = {
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]},
        }
        if pod is not None:
            about["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        claims = {
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "jti": secrets.token_hex(8),
            "kubernetes.io": about,
        }
        text = f"{_word({'alg': 'HS256', 'typ': 'JWT'})}.{_word(claims)}"
        return f"{text}.{self._signed(text)}"

    def authenticate(self, header: str | None) -> User:
        """Whose credentials these are; no credentials are nobody's, wrong ones are refused."""
        if not header:
            return ANONYMOUS
        token = header.partition(" ")[2].strip()
        user = self._users.get(token) or self._account(token)
        if user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def authorize(
        self,
        user: User,
        verb: str,
        resource: Resource,
        subresource: str,
        namespace: str | None,
        name: str | None,
    ) -> None:
        """Refuse what no role allows."""
        what = f"{resource.plural}/{subresource}" if subresource else resource.plural
        if resource.plural == "selfsubjectaccessreviews" and user is not ANONYMOUS:
            return
        if self.allows(user, verb, resource.group, what, namespace, name):
            return
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        why = (
            f'User "{user.name}" cannot {verb} resource "{what}" in API group "{resource.group}" '
            f"{where}"
        )
        raise Refused.forbidden(resource, name, why)

    def allows(
        self,
        user: User,
        verb: str,
        group: str,
        what: str,
        namespace: str | None,
        name: str | None = None,
    ) -> bool:
        """Whether a role that is bound to a user has a rule for it."""
        return _MASTERS in user.groups or any(
            verb in rule["verbs"]
            and group in rule["apiGroups"]
            and what in rule["resources"]
            and (not rule.get("resourceNames") or name in rule["resourceNames"])
            for rule in self._rules(user, namespace)
        )

    def review(self, user: User, review: Object) -> Object:
        """The answer to a caller that asks for its own rights."""
        told = review["spec"]["resourceAttributes"]
        subresource = told.get("subresource")
        what = f"{told['resource']}/{subresource}" if subresource else told["resource"]
        is_allowed = self.allows(
            user,
            told.get("verb", ""),
            told.get("group", ""),
            what,
            told.get("namespace"),
            told.get("name"),
        )
        return {"metadata": {}, **review, "status": {"allowed": is_allowed}}

    def _rules(self, user: User, namespace: str | None) -> Iterator[Object]:
        for binding in self._store.list(ROLE_BINDINGS, namespace) if namespace else ():
            if any(_is_subject(one, user, namespace) for one in binding.get("subjects") or ()):
                role = self._store.get(ROLES, namespace, binding["roleRef"]["name"])
                yield from (role or {}).get("rules") or ()

    def _account(self, token: str) -> User | None:
        text, _, signature = token.rpartition(".")
        if not text or not hmac.compare_digest(signature, self._signed(text)):
            return None
        padded = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(padded + "=" * (-len(padded) % 4)))
        about = claims["kubernetes.io"]
        namespace, account = about["namespace"], about["serviceaccount"]
        bound = [(ACCOUNTS, account), (PODS, about.get("pod"))]
        for resource, wanted in bound:
            if wanted is not None:
                there = self._store.get(resource, namespace, wanted["name"])
                if there is None or there["metadata"]["uid"] != wanted["uid"]:
                    return None
        return User(claims["sub"], ("system:serviceaccounts", "system:authenticated"))

    def _signed(self, text: str) -> str:
        digest = hmac.digest(self._key, text.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _word(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


def _is_subject(subject: Object, user: User, namespace: str | None) -> bool:
    if subject["kind"] == "ServiceAccount":
        where = subject.get("namespace") or namespace
        return user.name == f"system:serviceaccount:{where}:{subject['name']}"
    return user.name == subject["name"]


def make_certificates(
    folder: Path, addresses: Sequence[str], *, identified: bool
) -> tuple[str, ssl.SSLContext]:
    """Make an authority's certificate, as PEM, and what the server listens with.

    Args:
        folder: where the server's files go.
        addresses: where the server listens.
        identified: False for certificates without key identifiers, as Amazon's clusters have.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes-ca")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    names = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    root = _builder(issuer, issuer, authority_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    leaf = _builder(subject, issuer, key).add_extension(
        x509.SubjectAlternativeName(names), critical=False
    )
    if identified:
        root = root.add_extension(identifier, critical=False)
        root = root.add_extension(_SIGNS, critical=True)
        leaf = leaf.add_extension(issued_by, critical=False)
    pem = serialization.Encoding.PEM
    certificates = [one.sign(authority_key, hashes.SHA256()) for one in (root, leaf)]
    (folder / "server.crt").write_bytes(certificates[1].public_bytes(pem))
    (folder / "server.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    return certificates[0].public_bytes(pem).decode(), context


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
