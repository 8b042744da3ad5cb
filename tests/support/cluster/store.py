"""The objects, each change of them under a number that rises, and who wants to hear of changes."""

from __future__ import annotations

import asyncio
import datetime as dt
import pickle
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import attrs

from .kinds import Resource
from .refusals import Refused

__all__ = ["Change", "Object", "Store", "Subscription", "clone", "now"]

#: an API object, as JSON has it
Object = dict[str, Any]
_KEPT = 50_000


def clone(thing: Any) -> Any:
    """A deep copy of something made of JSON's types."""
    return pickle.loads(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))


def now(*, ahead: float = 0.0) -> str:
    """The time as the API writes it."""
    moment = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=ahead)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@attrs.frozen
class Change:
    """One object became another."""

    version: int
    type: str
    resource: Resource
    object: Object
    before: Object | None


class Subscription:
    """Changes of some resources, from a version on; iterated until it is closed."""

    def __init__(self, store: Store, resources: frozenset[Resource], since: int = 0) -> None:
        self._store = store
        self._resources = resources
        self._since = since
        self._queue: asyncio.Queue[Change | None] = asyncio.Queue()

    def wants(self, change: Change) -> bool:
        if change.version <= self._since:
            return False
        return not self._resources or change.resource in self._resources

    def put(self, change: Change) -> None:
        self._queue.put_nowait(change)

    async def get(self) -> Change | None:
        """The next one; None once it is closed."""
        return await self._queue.get()

    def close(self) -> None:
        self._store.forget(self)
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Change]:
        while (change := await self._queue.get()) is not None:
            yield change


class Store:
    """What etcd and the watch cache are to a real one. Its loop alone may use it."""

    def __init__(self) -> None:
        self.version = 1000
        #: watches from before this one are refused
        self.floor = 0
        self._objects: dict[Resource, dict[tuple[str, str], Object]] = {}
        self._log: list[Change] = []
        self._subscriptions: list[Subscription] = []

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object as it is, not to be changed; None where there is none."""
        return self._objects.get(resource, {}).get((namespace or "", name))

    def need(self, resource: Resource, namespace: str | None, name: str) -> Object:
        found = self.get(resource, namespace, name)
        if found is None:
            raise Refused.not_found(resource, name)
        return found

    def list(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """All, of one namespace or of all, in the order of their names; not to be changed."""
        kept = self._objects.get(resource, {})
        return [kept[key] for key in sorted(kept) if namespace is None or key[0] == namespace]

    def resources(self) -> Iterable[Resource]:
        return list(self._objects)

    def create(self, resource: Resource, thing: Object) -> Object:
        """Keep a new object; its uid, times and version are set in it."""
        meta = thing["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        there = self._objects.setdefault(resource, {}).get(key)
        if there is not None:
            deleting = "deletionTimestamp" in there["metadata"]
            raise Refused.already_exists(resource, meta["name"], deleting=deleting)
        meta["uid"] = str(uuid.uuid4())
        meta.setdefault("creationTimestamp", now())
        return self._write("ADDED", resource, thing, None)

    def update(self, resource: Resource, thing: Object) -> Object:
        """Replace an object; one that is the same gets no new version."""
        meta = thing["metadata"]
        before = self.need(resource, meta.get("namespace"), meta["name"])
        meta["resourceVersion"] = before["metadata"]["resourceVersion"]
        if thing == before:
            return before
        return self._write("MODIFIED", resource, thing, before)

    def delete(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Remove an object; the answer is as it was, under the version of its removal."""
        before = self.need(resource, namespace, name)
        return self._write("DELETED", resource, clone(before), before)

    def subscribe(self, *resources: Resource, since: int | None = None) -> Subscription:
        """Hear of changes after a version, or from now on."""
        subscription = Subscription(self, frozenset(resources), since or 0)
        if since is not None:
            if since < self.floor:
                raise Refused.expired(since, self.floor)
            for change in self._after(since):
                if subscription.wants(change):
                    subscription.put(change)
        self._subscriptions.append(subscription)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def compact(self, version: int | None = None) -> None:
        """Forget what was before a version, or before now."""
        self.floor = self.version if version is None else version + 1
        self._log = [change for change in self._log if change.version >= self.floor]

    def history(self, resource: Resource, namespace: str | None) -> list[tuple[str, Object]]:
        """What has happened to a kind, as far as it is kept."""
        return [
            (change.type, change.object)
            for change in self._log
            if change.resource is resource
            and namespace in {None, change.object["metadata"].get("namespace")}
        ]

    def tick(self) -> int:
        """A version that no object has."""
        self.version += 1
        return self.version

    def _after(self, version: int) -> Iterator[Change]:
        return (change for change in self._log if change.version > version)

    def _write(
        self, type_: str, resource: Resource, thing: Object, before: Object | None
    ) -> Object:
        meta = thing["metadata"]
        meta["resourceVersion"] = str(self.tick())
        key = (meta.get("namespace", ""), meta["name"])
        if type_ == "DELETED":
            del self._objects[resource][key]
        else:
            self._objects[resource][key] = thing
        change = Change(self.version, type_, resource, thing, before)
        self._log.append(change)
        if len(self._log) > _KEPT:
            self.floor = self._log[_KEPT // 2].version
            del self._log[: _KEPT // 2]
        for subscription in self._subscriptions:
            if subscription.wants(change):
                subscription.put(change)
        return thing
