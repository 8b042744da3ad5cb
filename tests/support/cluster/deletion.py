"""Deletion: grace, preconditions, finalizers, and what goes when an owner has gone."""

from __future__ import annotations

import datetime as dt

import attrs

from .kinds import BUDGETS, NAMESPACES, PODS, Resource, by_kind
from .refusals import Refused
from .selectors import label_selector
from .store import Object, Store, Subscription, clone, now

__all__ = ["Deletion"]

_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"
_POLICIES = ("Background", "Foreground", "Orphan")


@attrs.define
class Deletion:
    """What DELETE does, and the garbage collector after it."""

    store: Store
    _owned: dict[str, set[tuple[Resource, str, str]]] = attrs.field(factory=dict)

    def delete(
        self, resource: Resource, there: Object, options: Object, *, dry: bool = False
    ) -> Object:
        """Delete one object; the answer is it, or a Status where it is gone at once."""
        meta = there["metadata"]
        policy = options.get("propagationPolicy")
        self._conditions(resource, meta, options)
        new = clone(there)
        finalizers = list(meta.get("finalizers") or ())
        finalizers += [
            name
            for name, wanted in ((_FOREGROUND, "Foreground"), (_ORPHAN, "Orphan"))
            if policy == wanted and name not in finalizers
        ]
        if resource is NAMESPACES:
            return self._namespace(new, dry=dry)
        grace = self._grace(resource, there, options)
        if grace is None and not finalizers:
            if not dry:
                self.store.delete(resource, meta.get("namespace"), meta["name"])
            return _gone(resource, meta)
        if finalizers:
            new["metadata"]["finalizers"] = finalizers
        self._mark(new, 0 if grace is None else grace)
        if dry:
            return new
        made = self.store.update(resource, new)
        return self.finish(resource, made)

    def finish(self, resource: Resource, thing: Object) -> Object:
        """Remove an object for which nobody needs to do anything more."""
        meta = thing["metadata"]
        if "deletionTimestamp" not in meta or meta.get("finalizers"):
            return thing
        if meta.get("deletionGracePeriodSeconds", 0) > 0:
            return thing
        if resource is NAMESPACES:
            return thing
        return self.store.delete(resource, meta.get("namespace"), meta["name"])

    def evict(self, pod: Object, options: Object, *, dry: bool = False) -> None:
        """Delete a pod unless a budget needs it."""
        meta = pod["metadata"]
        if pod["status"].get("phase") not in {"Succeeded", "Failed", "Pending"}:
            for budget in self.store.list(BUDGETS, meta["namespace"]):
                self._budget(budget, pod)
        if not dry:
            new = clone(self.store.need(PODS, meta["namespace"], meta["name"]))
            conditions = new["status"].setdefault("conditions", [])
            conditions.append(
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": now(),
                    "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting",
                }
            )
            pod = self.store.update(PODS, new)
        self.delete(PODS, pod, options, dry=dry)

    async def collect(self, changes: Subscription) -> None:
        """Delete dependants of what is gone, until the subscription is closed."""
        async for change in changes:
            meta = change.object["metadata"]
            for owner in meta.get("ownerReferences") or ():
                key = (change.resource, meta.get("namespace", ""), meta["name"])
                self._owned.setdefault(owner["uid"], set()).add(key)
            if change.type == "DELETED":
                self._orphans(meta["uid"])
                self._foreground_owners(change.object)
                if meta.get("namespace"):
                    self._emptied(meta["namespace"])
            elif change.before is None or _owners(change.before) != _owners(change.object):
                self._without_owner(change.resource, change.object)
            if change.type == "MODIFIED" and "deletionTimestamp" in meta:
                self._policies(change.resource, change.object)

    def _conditions(self, resource: Resource, meta: Object, options: Object) -> None:
        wanted = options.get("preconditions") or {}
        pairs = (("uid", "UID", "deleted and then recreated"), ("resourceVersion",) * 2 + ("",))
        for key, _, _ in pairs:
            told = wanted.get(key)
            if not told or told == meta[key]:
                continue
            word = "UID" if key == "uid" else "ResourceVersion"
            why = (
                "The object might have been deleted and then recreated"
                if key == "uid"
                else "The object might have been modified"
            )
            message = (
                f"the {word} in the precondition ({told}) does not match the {word} in record "
                f"({meta[key]}). {why}"
            )
            raise Refused.conflict(resource, meta["name"], message, resource.kind)
        policy = options.get("propagationPolicy")
        if policy is not None and policy not in _POLICIES:
            message = (
                f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: '
                f'"{policy}": supported values: "Foreground", "Background", "Orphan", "nil"'
            )
            text = message.partition("propagationPolicy: ")[2]
            cause = {
                "reason": "FieldValueNotSupported",
                "message": text,
                "field": "propagationPolicy",
            }
            details = {"group": "meta.k8s.io", "kind": "DeleteOptions", "causes": [cause]}
            raise Refused(422, "Invalid", message, details)

    def _grace(self, resource: Resource, thing: Object, options: Object) -> int | None:
        """Seconds that an object is given; None where its kind knows no grace."""
        if resource is not PODS:
            return None
        asked = options.get("gracePeriodSeconds")
        grace = thing["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
        grace = 1 if grace < 0 else grace
        # nobody would end what no node has, and what has ended needs no time
        if not thing["spec"].get("nodeName"):
            return 0
        return 0 if thing["status"].get("phase") in {"Succeeded", "Failed"} else int(grace)

    def _mark(self, thing: Object, grace: int) -> None:
        meta = thing["metadata"]
        if "deletionTimestamp" in meta:
            before = meta.get("deletionGracePeriodSeconds", 0)
            if grace >= before:
                return
            began = _moment(meta["deletionTimestamp"]) - dt.timedelta(seconds=before)
            past = dt.datetime.now(dt.timezone.utc) - began
            is_over = grace <= past.total_seconds()
            end = began + dt.timedelta(seconds=grace)
            # a grace that is over by now is one second, and the time is not in the past
            meta["deletionTimestamp"] = now() if is_over else end.strftime("%Y-%m-%dT%H:%M:%SZ")
            meta["deletionGracePeriodSeconds"] = 1 if is_over and grace else grace
            return
        meta["deletionTimestamp"] = now(ahead=grace)
        meta["deletionGracePeriodSeconds"] = grace
        if "generation" in meta:
            meta["generation"] += 1

    def _namespace(self, new: Object, *, dry: bool) -> Object:
        meta = new["metadata"]
        if "deletionTimestamp" not in meta:
            meta["deletionTimestamp"] = now()
            new["status"]["phase"] = "Terminating"
        if dry:
            return new
        made = self.store.update(NAMESPACES, new)
        for resource in self.store.resources():
            if resource.namespaced:
                for thing in self.store.list(resource, meta["name"]):
                    self.delete(resource, thing, {})
        self._emptied(meta["name"])
        return made

    def _emptied(self, name: str) -> None:
        """A namespace that goes away is gone when it is empty."""
        there = self.store.get(NAMESPACES, None, name)
        if there is None or "deletionTimestamp" not in there["metadata"]:
            return
        if not any(
            self.store.list(resource, name)
            for resource in self.store.resources()
            if resource.namespaced
        ):
            self.store.delete(NAMESPACES, None, name)

    def _budget(self, budget: Object, pod: Object) -> None:
        selector = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
        labels = pod["metadata"].get("labels") or {}
        if not label_selector(",".join(f"{k}={v}" for k, v in selector.items()))(labels):
            return
        namespace = pod["metadata"]["namespace"]
        mine = [
            thing
            for thing in self.store.list(PODS, namespace)
            if all((thing["metadata"].get("labels") or {}).get(k) == v for k, v in selector.items())
        ]
        healthy = sum(_ready(thing) for thing in mine)
        least = budget["spec"].get("minAvailable")
        most = budget["spec"].get("maxUnavailable")
        needed = int(least) if least is not None else len(mine) - int(most or 0)
        if healthy - 1 < needed:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            name = budget["metadata"]["name"]
            why = (
                f"The disruption budget {name} needs {needed} healthy pods and has {healthy} "
                "currently"
            )
            causes = [{"reason": "DisruptionBudget", "message": why}]
            raise Refused(429, "TooManyRequests", message, {"causes": causes})

    def _orphans(self, uid: str) -> None:
        for resource, thing in self._children(uid):
            self._without_owner(resource, thing)
        self._owned.pop(uid, None)

    def _without_owner(self, resource: Resource, thing: Object) -> None:
        """Delete an object all whose owners are gone."""
        meta = thing["metadata"]
        current = self.store.get(resource, meta.get("namespace"), meta["name"])
        if current is None or current["metadata"]["uid"] != meta["uid"]:
            return
        thing = current
        owners = thing["metadata"].get("ownerReferences") or ()
        if not owners or "deletionTimestamp" in thing["metadata"]:
            return
        if any(self._there(owner, thing) for owner in owners):
            return
        options = {"preconditions": {"uid": thing["metadata"]["uid"]}}
        self.delete(resource, thing, {**options, "propagationPolicy": "Background"})

    def _there(self, owner: Object, thing: Object) -> bool:
        resource = by_kind(owner["apiVersion"], owner["kind"])
        if resource is None:
            return True
        namespace = thing["metadata"].get("namespace") if resource.namespaced else None
        found = self.store.get(resource, namespace, owner["name"])
        return found is not None and found["metadata"]["uid"] == owner["uid"]

    def _policies(self, resource: Resource, thing: Object) -> None:
        """Do what the finalizers of a deletion ask for."""
        finalizers = thing["metadata"].get("finalizers") or ()
        if _ORPHAN in finalizers:
            uid = thing["metadata"]["uid"]
            for other, child in self._children(uid):
                freed = clone(child)
                owners = [o for o in freed["metadata"]["ownerReferences"] if o["uid"] != uid]
                freed["metadata"]["ownerReferences"] = owners
                if not owners:
                    del freed["metadata"]["ownerReferences"]
                self.store.update(other, freed)
            self._drop(resource, thing, _ORPHAN)
        elif _FOREGROUND in finalizers:
            blocking = False
            for other, child in self._children(thing["metadata"]["uid"]):
                if "deletionTimestamp" not in child["metadata"]:
                    self.delete(other, child, {"propagationPolicy": "Foreground"})
            for _, child in self._children(thing["metadata"]["uid"]):
                mine = child["metadata"]["ownerReferences"]
                uid = thing["metadata"]["uid"]
                blocking |= any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in mine)
            if not blocking:
                self._drop(resource, thing, _FOREGROUND)

    def _foreground_owners(self, gone: Object) -> None:
        for owner in gone["metadata"].get("ownerReferences") or ():
            resource = by_kind(owner["apiVersion"], owner["kind"])
            if resource is None:
                continue
            namespace = gone["metadata"].get("namespace") if resource.namespaced else None
            there = self.store.get(resource, namespace, owner["name"])
            if there is not None and "deletionTimestamp" in there["metadata"]:
                self._policies(resource, there)

    def _children(self, uid: str) -> list[tuple[Resource, Object]]:
        found = []
        for resource, namespace, name in sorted(self._owned.get(uid, ()), key=str):
            thing = self.store.get(resource, namespace, name)
            owners = thing["metadata"].get("ownerReferences") if thing is not None else None
            if thing is not None and any(owner["uid"] == uid for owner in owners or ()):
                found.append((resource, thing))
        return found

    def _drop(self, resource: Resource, thing: Object, finalizer: str) -> None:
        meta = thing["metadata"]
        there = self.store.get(resource, meta.get("namespace"), meta["name"])
        if there is None or finalizer not in (there["metadata"].get("finalizers") or ()):
            return
        new = clone(there)
        new["metadata"]["finalizers"].remove(finalizer)
        if not new["metadata"]["finalizers"]:
            del new["metadata"]["finalizers"]
        self.finish(resource, self.store.update(resource, new))


def _gone(resource: Resource, meta: Object) -> Object:
    details = {"name": meta["name"], "kind": resource.plural, "uid": meta["uid"]}
    if resource.group:
        details["group"] = resource.group
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


def _owners(thing: Object) -> object:
    return thing["metadata"].get("ownerReferences")


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def _ready(pod: Object) -> bool:
    return any(
        item["type"] == "Ready" and item["status"] == "True"
        for item in pod["status"].get("conditions") or ()
    )
