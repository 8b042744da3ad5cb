"""Objects of the API: kinds, versions, changes, selectors, and answers that refuse."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from fractions import Fraction
from typing import Any

import attrs

#: an API object, as JSON has it
Object = dict[str, Any]


def clone(thing: Any) -> Any:
    """A deep copy of something made of JSON's types."""
    return pickle.loads(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))


def now(*, ahead: float = 0.0) -> str:
    """The time as the API writes it."""
    moment = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=ahead)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# -- kinds


@attrs.frozen
class Resource:
    """One kind of object, as the API server publishes it."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Name in messages: ``pods``, ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_RBAC = "rbac.authorization.k8s.io"
RESOURCES = (
    Resource("", "v1", "Namespace", "namespaces", False),
    Resource("", "v1", "Node", "nodes", False),
    Resource("", "v1", "Pod", "pods"),
    Resource("", "v1", "Secret", "secrets"),
    Resource("", "v1", "ConfigMap", "configmaps"),
    Resource("", "v1", "Event", "events"),
    Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Resource("", "v1", "ServiceAccount", "serviceaccounts"),
    Resource("coordination.k8s.io", "v1", "Lease", "leases"),
    Resource(_RBAC, "v1", "Role", "roles"),
    Resource(_RBAC, "v1", "RoleBinding", "rolebindings"),
    # of the usual schedulers of groups
    Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    Resource("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
    # answered at once, and never kept
    Resource("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False),
)  # fmt: skip
#: groups that no cluster has unless somebody installs them
CUSTOM = frozenset({"scheduling.x-k8s.io", "scheduling.volcano.sh"})

_BY_PATH = {(item.group, item.version, item.plural): item for item in RESOURCES}
_BY_PLURAL = {item.plural: item for item in reversed(RESOURCES)}
_BY_KIND = {(item.api_version, item.kind): item for item in RESOURCES}


def of(plural: str, group: str | None = None, version: str = "v1") -> Resource | None:
    """The resource of a path, or of a plural alone; None where there is none."""
    if group is None:
        return _BY_PLURAL.get(plural)
    return _BY_PATH.get((group, version, plural))


def by_kind(api_version: str, kind: str) -> Resource:
    """The resource of an owner reference."""
    return _BY_KIND[api_version, kind]


NAMESPACES = _BY_PLURAL["namespaces"]
NODES = _BY_PLURAL["nodes"]
PODS = _BY_PLURAL["pods"]
SECRETS = _BY_PLURAL["secrets"]
CONFIG_MAPS = _BY_PLURAL["configmaps"]
EVENTS = _BY_PLURAL["events"]
ACCOUNTS = _BY_PLURAL["serviceaccounts"]
ROLES = _BY_PLURAL["roles"]
ROLE_BINDINGS = _BY_PLURAL["rolebindings"]
REVIEWS = _BY_PLURAL["selfsubjectaccessreviews"]


# -- refusals


class Refused(Exception):  # noqa: N818 - an answer, no failure
    """An answer of kind Status."""

    def __init__(
        self, code: int, reason: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.headers = headers or {}

    @property
    def status(self) -> Object:
        """Body of the answer."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        return {**body, "code": self.code}

    @classmethod
    def not_found(cls, resource: Resource, name: str) -> Refused:
        message = f'{resource.qualified} "{name}" not found'
        return cls(404, "NotFound", message)

    @classmethod
    def conflict(cls, resource: Resource, name: str, why: str) -> Refused:
        message = f'Operation cannot be fulfilled on {resource.kind} "{name}": {why}'
        return cls(409, "Conflict", message)

    @classmethod
    def forbidden(cls, resource: Resource, name: str | None, why: str) -> Refused:
        named = f' "{name}"' if name else ""
        message = f"{resource.qualified}{named} is forbidden: {why}"
        return cls(403, "Forbidden", message)

    @classmethod
    def bad_request(cls, message: str) -> Refused:
        return cls(400, "BadRequest", message)


# -- quantities

_UNITS: dict[str, int | Fraction] = {
    "": 1,
    "m": Fraction(1, 1000),
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def quantity(text: object) -> Fraction:
    """The number of ``3``, ``500m`` or ``4Gi``."""
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", str(text)).groups()  # type: ignore[union-attr]
    return Fraction(number) * _UNITS[unit]


# -- selectors


def selection(query: Mapping[str, str]) -> Callable[[Object], bool]:
    """A test of objects, from the selectors of a request."""
    labels = _terms(query.get("labelSelector", ""))
    fields = _terms(query.get("fieldSelector", ""))

    def matches(thing: Object) -> bool:
        theirs = thing["metadata"].get("labels") or {}
        return all(
            key in theirs and (not values or theirs[key] in values) for key, values in labels
        ) and all(_field(thing, path) in values for path, values in fields)

    return matches


#: ``KEY=VALUE``, ``KEY in (VALUE,VALUE)`` or ``KEY``; nobody uses others
_TERM = re.compile(r"([^\s,=!()]+)(?:=([^\s,=!()]*)| in \(([^()]*)\))?(?:,|$)")


def _terms(text: str) -> list[tuple[str, list[str]]]:
    """Keys with their values; a key without any is one that has to be there."""
    found, position = [], 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise Refused.bad_request(f"unable to parse requirement: found '{text[position:]}'")
        values = (match[2] or match[3] or "").split(",") if match.lastindex != 1 else []
        found.append((match[1], values))
        position = match.end()
    return found


def _field(thing: Object, path: str) -> str:
    value: Any = thing
    for part in path.split("."):
        value = (value or {}).get(part)
    return "" if value is None else str(value)


def merge(target: Any, patch: Any) -> Any:
    """An object that a JSON merge patch was applied to."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


# -- the store


@attrs.frozen
class Change:
    """One object became another."""

    version: int
    type: str
    resource: Resource
    object: Object
    time: float = attrs.field(factory=time.time)


class Subscription:
    """Changes of some resources, from a version on; iterated until it is closed."""

    def __init__(self, store: Store, resources: frozenset[Resource], since: int = 0) -> None:
        self._store = store
        self._resources = resources
        self._since = since
        self._queue: asyncio.Queue[Change | None] = asyncio.Queue()

    def put(self, change: Change) -> None:
        if change.version > self._since and (
            not self._resources or change.resource in self._resources
        ):
            self._queue.put_nowait(change)

    async def get(self) -> Change | None:
        """The next one; None once it is closed."""
        return await self._queue.get()

    def close(self) -> None:
        self._store.subscriptions.discard(self)
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Change]:
        while (change := await self._queue.get()) is not None:
            yield change


class Store:
    """All objects, each change under a number that rises. Its loop alone may use it."""

    def __init__(self) -> None:
        self.version = 1000
        #: watches from before this one are refused
        self.floor = 0
        self.subscriptions: set[Subscription] = set()
        self._objects: dict[Resource, dict[tuple[str, str], Object]] = {}
        self.changes: list[Change] = []

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object as it is, not to be changed; None where there is none."""
        return self._objects.get(resource, {}).get((namespace or "", name))

    def need(self, resource: Resource, namespace: str | None, name: str) -> Object:
        found = self.get(resource, namespace, name)
        if found is None:
            raise Refused.not_found(resource, name)
        return found

    def same(self, resource: Resource, thing: Object) -> Object | None:
        """The latest version of an object; None where it is gone."""
        meta = thing["metadata"]
        there = self.get(resource, meta.get("namespace"), meta["name"])
        is_same = there is not None and there["metadata"]["uid"] == meta["uid"]
        return there if is_same else None

    def list(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """All, of one namespace or of all, in the order of their names; not to be changed."""
        kept = self._objects.get(resource, {})
        return [kept[key] for key in sorted(kept) if namespace is None or key[0] == namespace]

    def create(self, resource: Resource, thing: Object) -> Object:
        """Keep a new object; its uid, times and version are set in it."""
        meta = thing["metadata"]
        there = self.get(resource, meta.get("namespace"), meta["name"])
        if there is not None:
            message = f'{resource.qualified} "{meta["name"]}" already exists'
            raise Refused(409, "AlreadyExists", message)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now()
        return self._write("ADDED", resource, thing)

    def update(self, resource: Resource, thing: Object) -> Object:
        """Replace an object; one that is the same gets no new version."""
        meta = thing["metadata"]
        before = self.need(resource, meta.get("namespace"), meta["name"])
        meta["resourceVersion"] = before["metadata"]["resourceVersion"]
        return before if thing == before else self._write("MODIFIED", resource, thing)

    def delete(self, resource: Resource, thing: Object) -> Object:
        """Remove an object; the answer is as it was, under the version of its removal."""
        meta = thing["metadata"]
        before = self.need(resource, meta.get("namespace"), meta["name"])
        return self._write("DELETED", resource, clone(before))

    def subscribe(self, *resources: Resource, since: int | None = None) -> Subscription:
        """Hear of changes after a version, or from now on."""
        subscription = Subscription(self, frozenset(resources), since or 0)
        if since is not None:
            if since < self.floor:
                message = f"too old resource version: {since} ({self.floor})"
                raise Refused(410, "Expired", message)
            for change in self.changes:
                subscription.put(change)
        self.subscriptions.add(subscription)
        return subscription

    def forget_history(self) -> None:
        """Refuse watches from before now."""
        self.floor = self.version

    def _write(self, kind: str, resource: Resource, thing: Object) -> Object:
        self.version += 1
        meta = thing["metadata"]
        meta["resourceVersion"] = str(self.version)
        kept = self._objects.setdefault(resource, {})
        key = (meta.get("namespace", ""), meta["name"])
        if kind == "DELETED":
            del kept[key]
        else:
            kept[key] = thing
        change = Change(self.version, kind, resource, thing)
        self.changes.append(change)
        for subscription in list(self.subscriptions):
            subscription.put(change)
        return thing
