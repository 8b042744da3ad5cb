"""Who calls, and what they may: tokens of users and service accounts, roles and their bindings."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

import attrs

from .kinds import (
    ACCOUNTS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
)
from .refusals import Refused
from .requests import Asked
from .store import Object, Store

__all__ = ["ANONYMOUS", "Authority", "User"]

_ISSUER = "https://kubernetes.default.svc"
_MASTERS = "system:masters"


@attrs.frozen
class User:
    """Whoever a request is from."""

    name: str
    groups: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    extra: dict[str, list[str]] = attrs.field(factory=dict, eq=False)
    uid: str = ""


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


class Authority:
    """Gives tokens out, reads them, and asks the roles."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = secrets.token_bytes(32)
        self._users: dict[str, User] = {}
        #: tokens from before this moment are refused
        self.not_before = 0.0

    def user_token(self, name: str, groups: tuple[str, ...] = ()) -> str:
        """A token of a user who is no service account."""
        token = secrets.token_urlsafe(16)
        self._users[token] = User(name, ("system:authenticated", *groups))
        return token

    def account_token(
        self,
        namespace: str,
        name: str,
        pod: Object | None = None,
        seconds: int = 3600,
    ) -> str:
        """A token of a service account, bound to a pod where one is given."""
        account = self._store.need(ACCOUNTS, namespace, name)
        about: dict[str, Any] = {
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]},
        }
        if pod is not None:
            about["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            about["node"] = {"name": pod["spec"].get("nodeName", "")}
        issued = time.time()
        claims = {
            "aud": [_ISSUER],
            "exp": int(issued + seconds),
            "iat": int(issued),
            "iss": _ISSUER,
            "jti": secrets.token_hex(8),
            "issued": issued,
            "kubernetes.io": about,
            "nbf": int(issued),
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        head = _word({"alg": "HS256", "typ": "JWT"})
        text = f"{head}.{_word(claims)}"
        return f"{text}.{self._signed(text)}"

    def authenticate(self, header: str | None) -> User:
        """Whose credentials these are; no credentials are nobody's, wrong ones are refused."""
        if not header:
            return ANONYMOUS
        # the official client's word in a pod begins with a small letter
        token = (header[7:] if header[:7].lower() == "bearer " else header).strip()
        user = self._users.get(token) or self._account(token)
        if user is None:
            raise Refused.unauthorized()
        return user

    def authorize(self, user: User, asked: Asked) -> None:
        """Refuse what no role allows."""
        resource, sub = asked.resource, asked.subresource
        if self.allows(
            user, asked.verb, resource.group, resource.plural, sub, asked.namespace, asked.name
        ):
            return
        what = f"{resource.plural}/{sub}" if sub else resource.plural
        where = (
            f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        )
        why = (
            f'User "{user.name}" cannot {asked.verb} resource "{what}" in API group '
            f'"{resource.group}" {where}'
        )
        raise Refused.forbidden(resource, asked.name, why)

    def allows(
        self,
        user: User,
        verb: str,
        group: str,
        plural: str,
        subresource: str = "",
        namespace: str | None = None,
        name: str | None = None,
    ) -> bool:
        """Whether a role that is bound to a user has a rule for it."""
        if _MASTERS in user.groups:
            return True
        what = f"{plural}/{subresource}" if subresource else plural
        return any(
            _covers(rule, verb, group, what, plural, subresource, name)
            for rule in self.rules(user, namespace)
        )

    def rules(self, user: User, namespace: str | None) -> Iterator[Object]:
        """The rules that count for a user in a namespace, or in none."""
        if user.name != ANONYMOUS.name:
            for review in ("selfsubjectaccessreviews", "selfsubjectrulesreviews"):
                yield {
                    "verbs": ["create"],
                    "apiGroups": ["authorization.k8s.io"],
                    "resources": [review],
                }
            yield {
                "verbs": ["create"],
                "apiGroups": ["authentication.k8s.io"],
                "resources": ["selfsubjectreviews"],
            }
        for binding in self._store.list(CLUSTER_ROLE_BINDINGS):
            if _binds(binding, user):
                role = self._store.get(CLUSTER_ROLES, None, binding["roleRef"]["name"])
                yield from (role or {}).get("rules") or ()
        if namespace is None:
            return
        for binding in self._store.list(ROLE_BINDINGS, namespace):
            if _binds(binding, user):
                reference = binding["roleRef"]
                wide = reference["kind"] == "ClusterRole"
                role = self._store.get(
                    CLUSTER_ROLES if wide else ROLES,
                    None if wide else namespace,
                    reference["name"],
                )
                yield from (role or {}).get("rules") or ()

    def _account(self, token: str) -> User | None:
        text, _, signature = token.rpartition(".")
        if not text or not hmac.compare_digest(signature, self._signed(text)):
            return None
        padded = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(padded + "=" * (-len(padded) % 4)))
        if claims["exp"] < time.time() or claims["issued"] < self.not_before:
            return None
        about = claims["kubernetes.io"]
        namespace, account = about["namespace"], about["serviceaccount"]
        there = self._store.get(ACCOUNTS, namespace, account["name"])
        if there is None or there["metadata"]["uid"] != account["uid"]:
            return None
        extra = {"authentication.kubernetes.io/credential-id": [f"JTI={claims['jti']}"]}
        if (bound := about.get("pod")) is not None:
            pod = self._store.get(PODS, namespace, bound["name"])
            if pod is None or pod["metadata"]["uid"] != bound["uid"]:
                return None
            extra["authentication.kubernetes.io/pod-name"] = [bound["name"]]
            extra["authentication.kubernetes.io/pod-uid"] = [bound["uid"]]
        groups = (
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        )
        return User(claims["sub"], groups, extra, account["uid"])

    def _signed(self, text: str) -> str:
        digest = hmac.digest(self._key, text.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _word(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


def _binds(binding: Object, user: User) -> bool:
    for subject in binding.get("subjects") or ():
        kind, name = subject["kind"], subject["name"]
        if kind == "ServiceAccount":
            where = subject.get("namespace") or binding["metadata"].get("namespace", "")
            if user.name == f"system:serviceaccount:{where}:{name}":
                return True
        elif (kind == "User" and name == user.name) or (kind == "Group" and name in user.groups):
            return True
    return False


def _covers(
    rule: Object, verb: str, group: str, what: str, plural: str, subresource: str, name: str | None
) -> bool:
    resources = rule.get("resources") or ()
    if not {verb, "*"} & set(rule.get("verbs") or ()):
        return False
    if not {group, "*"} & set(rule.get("apiGroups") or ()):
        return False
    named = rule.get("resourceNames") or ()
    if named and name not in named:
        return False
    return (
        what in resources
        or "*" in resources
        or (bool(subresource) and f"*/{subresource}" in resources)
    )
