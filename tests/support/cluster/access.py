"""Who calls, and what they may: tokens, roles and reviews."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .objects import ACCOUNTS, PODS, ROLE_BINDINGS, ROLES, Object, Refused, Resource, Store

if TYPE_CHECKING:
    from .server import Call


class Authority:
    """Issues tokens, knows whose they are, and looks up the roles."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # by token: who has it, and what has to be there for it to count
        self._tokens: dict[str, tuple[str, Sequence[tuple[Resource, Object]]]] = {}

    def user_token(self, user: str) -> str:
        """A token of a user who is no service account: ``admin`` may do everything."""
        token = secrets.token_urlsafe(16)
        self._tokens[token] = (user, ())
        return token

    def account_token(self, namespace: str, name: str, pod: Object | None = None) -> str:
        """A token of a service account, bound to a pod where one is given."""
        bound = [(ACCOUNTS, self._store.need(ACCOUNTS, namespace, name))]
        about: Object = {"namespace": namespace}
        if pod is not None:
            bound.append((PODS, pod))
            about["pod"] = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        claims = base64.urlsafe_b64encode(json.dumps({"kubernetes.io": about}).encode())
        token = f"kind.{claims.decode().rstrip('=')}.{secrets.token_urlsafe(16)}"
        self._tokens[token] = (f"system:serviceaccount:{namespace}:{name}", bound)
        return token

    def authenticate(self, header: str) -> str:
        """Whose credentials these are; no credentials are nobody's, wrong ones are refused."""
        if not header:
            return "system:anonymous"
        user, bound = self._tokens.get(header.partition(" ")[2], (None, ()))
        if user is None or any(self._store.same(*one) is None for one in bound):
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def authorize(self, user: str, verb: str, call: Call) -> None:
        """Refuse what no role allows."""
        assert call.about is not None
        group, what = call.about.group, call.about.plural
        if what == "selfsubjectaccessreviews":
            return
        if call.subresource:
            what = f"{what}/{call.subresource}"
        if self._allows(user, verb, group, what, call.namespace):
            return
        where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
        why = f'User "{user}" cannot {verb} resource "{what}" in API group "{group}" {where}'
        raise Refused.forbidden(call.about, call.name, why)

    def review(self, user: str, review: Object) -> Object:
        """The answer to a caller that asks for its own rights."""
        told = review["spec"]["resourceAttributes"]
        what = told["resource"]
        if told.get("subresource"):
            what = f"{what}/{told['subresource']}"
        group = told.get("group", "")
        is_allowed = self._allows(user, told["verb"], group, what, told.get("namespace"))
        return {"metadata": {}, **review, "status": {"allowed": is_allowed}}

    def _allows(self, user: str, verb: str, group: str, what: str, namespace: str | None) -> bool:
        """Whether a role that is bound to a user has a rule for it."""
        return user == "admin" or any(
            verb in rule["verbs"] and group in rule["apiGroups"] and what in rule["resources"]
            for rule in self._rules(user, namespace)
        )

    def _rules(self, user: str, namespace: str | None) -> Iterator[Object]:
        for binding in self._store.list(ROLE_BINDINGS, namespace) if namespace else ():
            names = [
                f"system:serviceaccount:{namespace}:{one['name']}" for one in binding["subjects"]
            ]
            if user in names:
                role = self._store.get(ROLES, namespace, binding["roleRef"]["name"])
                yield from (role or {}).get("rules") or ()
