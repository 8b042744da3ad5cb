"""Deletion: grace, preconditions, and what goes when an owner has gone."""

import math

import attrs

from .objects import PODS, Object, Refused, Resource, Store, Subscription, by_kind, clone, now


def disrupt(store: Store, pod: Object, reason: str, message: str) -> Object:
    """Note in a pod why it is about to go."""
    new = clone(store.need(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now(),
        "reason": reason,
        "message": message,
    }
    new["status"].setdefault("conditions", []).append(condition)
    return store.update(PODS, new)


@attrs.define
class Deletion:
    """Deletes objects, and what they own."""

    store: Store
    _owned: dict[str, set[tuple[Resource, str, str]]] = attrs.field(factory=dict)

    def delete(self, resource: Resource, there: Object, options: Object) -> Object:
        """Delete one object; the answer is it, or a Status where it is gone at once."""
        meta = there["metadata"]
        self._check(resource, meta, options)
        if resource is not PODS:
            self.store.delete(resource, there)
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        grace, new = _grace(there, options), clone(there)
        if grace < meta.get("deletionGracePeriodSeconds", math.inf):
            new["metadata"]["deletionTimestamp"] = now(ahead=grace)
            new["metadata"]["deletionGracePeriodSeconds"] = grace
        made = self.store.update(resource, new)
        # what nobody needs time for is gone at once
        return made if grace else self.store.delete(resource, made)

    def evict(self, pod: Object, options: Object) -> None:
        """Delete a pod as a drain does."""
        pod = disrupt(self.store, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
        self.delete(PODS, pod, options)

    def preempt(self, pod: Object) -> None:
        """Delete a pod as the scheduler does for a more important one."""
        message = "default-scheduler: preempting to accommodate a higher priority pod"
        self.delete(PODS, disrupt(self.store, pod, "PreemptionByScheduler", message), {})

    async def collect(self, changes: Subscription) -> None:
        """Delete dependants of what is gone, until the subscription is closed."""
        async for change in changes:
            meta = change.object["metadata"]
            for owner in meta.get("ownerReferences") or ():
                key = (change.resource, meta.get("namespace", ""), meta["name"])
                self._owned.setdefault(owner["uid"], set()).add(key)
            if change.type == "DELETED":
                for resource, namespace, name in self._owned.pop(meta["uid"], ()):
                    self._without_owner(resource, self.store.get(resource, namespace, name))
            else:
                self._without_owner(
                    change.resource, self.store.same(change.resource, change.object)
                )

    def _check(self, resource: Resource, meta: Object, options: Object) -> None:
        for key, told in (options.get("preconditions") or {}).items():
            if told != meta[key]:
                why = f"the {key} in the precondition ({told}) does not match {meta[key]}"
                raise Refused.conflict(resource, meta["name"], why)

    def _without_owner(self, resource: Resource, thing: Object | None) -> None:
        """Delete an object all whose owners are gone."""
        if thing is None or "deletionTimestamp" in thing["metadata"]:
            return
        owners = thing["metadata"].get("ownerReferences") or ()
        if owners and not any(self._is_there(owner, thing) for owner in owners):
            self.delete(resource, thing, {})

    def _is_there(self, owner: Object, thing: Object) -> bool:
        resource = by_kind(owner["apiVersion"], owner["kind"])
        found = self.store.get(resource, thing["metadata"].get("namespace"), owner["name"])
        return found is not None and found["metadata"]["uid"] == owner["uid"]


def _grace(pod: Object, options: Object) -> int:
    # nobody would end what no node has, and what has ended needs no time
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in {"Succeeded", "Failed"}:
        return 0
    grace = options.get("gracePeriodSeconds")
    return int(pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace)
