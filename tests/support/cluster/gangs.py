"""Schedulers of groups, and the kinds that they bring along; none is there until it is installed."""

from __future__ import annotations

from typing import Protocol

import attrs

from .assembly import Parts
from .deletion import Deletion
from .kinds import NODES, PODS, Resource, of
from .placing import refusals
from .scheduler import bind, tell_waiting
from .store import Object, Store, Subscription, clone

__all__ = ["install"]

_ENDED = ("Succeeded", "Failed")
_KUEUE = "kueue.x-k8s.io"
_GATE = f"{_KUEUE}/admission"
_MANAGED = f"{_KUEUE}/managed"


class _Controller(Protocol):
    group: str

    async def run(self, changes: Subscription) -> None: ...


def install(parts: Parts, name: str) -> None:
    """Install one: ``scheduler-plugins``, ``volcano`` or ``kueue``."""
    found: _Controller
    watched = [PODS, NODES]
    if name == "kueue":
        kueue = Kueue(parts.store, parts.deletion)
        parts.api.admission.mutators.append(kueue.mutate)
        found = kueue
    else:
        found = GangScheduler.volcano(parts.store) if name == "volcano" else GangScheduler.plugins(parts.store)  # fmt: skip
        watched.append(found.groups)
    parts.server.absent.discard(found.group)
    parts.follow(found.run, parts.store.subscribe(*watched))


@attrs.define
class GangScheduler:
    """Gives the pods of a group nodes once all have room, and none before."""

    store: Store
    #: as pods name it
    name: str
    groups: Resource
    #: where a pod says which group it is of: a part of its metadata, and a key
    mark: tuple[str, str]

    @classmethod
    def plugins(cls, store: Store) -> GangScheduler:
        """The scheduler of scheduler-plugins with its plugin Coscheduling."""
        groups = _resource("podgroups", "scheduling.x-k8s.io", "v1alpha1")
        mark = ("labels", "scheduling.x-k8s.io/pod-group")
        return cls(store, "scheduler-plugins-scheduler", groups, mark)

    @classmethod
    def volcano(cls, store: Store) -> GangScheduler:
        """Volcano's."""
        groups = _resource("podgroups", "scheduling.volcano.sh", "v1beta1")
        return cls(store, "volcano", groups, ("annotations", "scheduling.k8s.io/group-name"))

    @property
    def group(self) -> str:
        return self.groups.group

    async def run(self, changes: Subscription) -> None:
        """Look at all groups after each change."""
        async for change in changes:
            status = change.type == "MODIFIED" and change.resource is PODS
            if status and change.object["status"].get("phase") not in _ENDED:
                continue
            self._all()

    def _all(self) -> None:
        waiting: dict[tuple[str, str], list[Object]] = {}
        for pod in self.store.list(PODS):
            if pod["spec"].get("schedulerName") == self.name and _waits(pod):
                name = self._group_of(pod)
                waiting.setdefault((pod["metadata"]["namespace"], name), []).append(pod)
        for (namespace, name), pods in waiting.items():
            self._one(namespace, name, pods)

    def _group_of(self, pod: Object) -> str:
        part, key = self.mark
        return str((pod["metadata"].get(part) or {}).get(key, ""))

    def _one(self, namespace: str, name: str, pods: list[Object]) -> None:
        group = self.store.get(self.groups, namespace, name)
        if group is None:
            self._refuse(pods, f"PodGroup {namespace}/{name} not found")
            return
        least = int(group["spec"].get("minMember", 1))
        others = [
            pod
            for pod in self.store.list(PODS, namespace)
            if self._group_of(pod) == name
            and pod["spec"].get("nodeName")
            and pod["status"].get("phase") not in _ENDED
        ]
        if len(pods) + len(others) < least:
            have = len(pods) + len(others)
            self._refuse(pods, f"{have}/{least} pods of PodGroup {name} are there")
            return
        places = self._places(pods)
        if places is None:
            self._refuse(pods, f"not all of the {least} pods of PodGroup {name} have room")
            return
        for pod, node in places:
            bind(self.store, pod, node)

    def _places(self, pods: list[Object]) -> list[tuple[Object, str]] | None:
        """A node for each pod; None where not all find one."""
        there: dict[str, list[Object]] = {}
        for pod in self.store.list(PODS):
            if pod["status"].get("phase") not in _ENDED:
                there.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        found = []
        for pod in pods:
            for node in self.store.list(NODES):
                name = node["metadata"]["name"]
                mine = there.setdefault(name, [])
                if not refusals(pod, node, mine):
                    mine.append(pod)
                    found.append((pod, name))
                    break
            else:
                return None
        return found

    def _refuse(self, pods: list[Object], why: str) -> None:
        for pod in pods:
            tell_waiting(self.store, pod, "Unschedulable", why, None)


@attrs.define
class Kueue:
    """Lets pods of a queue in by groups, and keeps them until their whole group has ended.

    A pod that was deleted stays with its finalizer while its group may go on with another one in
    its place; none may where a pod says that it is not to be tried again.
    """

    store: Store
    deletion: Deletion
    group: str = _KUEUE

    def mutate(self, resource: Resource, thing: Object) -> None:
        """Hold a new pod of a queue back."""
        labels = thing["metadata"].get("labels") or {}
        if resource is not PODS or f"{_KUEUE}/queue-name" not in labels:
            return
        thing["metadata"]["labels"] = {**labels, _MANAGED: "true"}
        thing["metadata"].setdefault("finalizers", []).append(_MANAGED)
        thing["spec"].setdefault("schedulingGates", []).append({"name": _GATE})

    async def run(self, changes: Subscription) -> None:
        """Look at all groups after each change of a pod."""
        async for change in changes:
            if change.resource is PODS:
                self._all()

    def _all(self) -> None:
        groups: dict[tuple[str, str], list[Object]] = {}
        for pod in self.store.list(PODS):
            meta = pod["metadata"]
            labels = meta.get("labels") or {}
            if _MANAGED in labels:
                name = labels.get(f"{_KUEUE}/pod-group-name", meta["name"])
                groups.setdefault((meta["namespace"], name), []).append(pod)
        for pods in groups.values():
            notes = [pod["metadata"].get("annotations") or {} for pod in pods]
            if len(pods) >= int(notes[0].get(f"{_KUEUE}/pod-group-total-count", 1)):
                self._admit(pods)
            final = any(note.get(f"{_KUEUE}/retriable-in-group") == "false" for note in notes)
            succeeded = all(pod["status"].get("phase") == "Succeeded" for pod in pods)
            if succeeded or (final and all(map(_has_ended, pods))):
                self._let_go(pods)

    def _admit(self, pods: list[Object]) -> None:
        for pod in pods:
            gates = pod["spec"].get("schedulingGates") or []
            if any(gate["name"] == _GATE for gate in gates):
                new = clone(pod)
                new["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] != _GATE]
                self.store.update(PODS, new)

    def _let_go(self, pods: list[Object]) -> None:
        for pod in pods:
            if _MANAGED in (pod["metadata"].get("finalizers") or ()):
                new = clone(pod)
                new["metadata"]["finalizers"].remove(_MANAGED)
                self.deletion.finish(PODS, self.store.update(PODS, new))


def _resource(plural: str, group: str, version: str) -> Resource:
    found = of(plural, group, version)
    assert found is not None, plural
    return found


def _waits(pod: Object) -> bool:
    return (
        not pod["spec"].get("nodeName")
        and pod["status"].get("phase") == "Pending"
        and "deletionTimestamp" not in pod["metadata"]
    )


def _has_ended(pod: Object) -> bool:
    if pod["status"].get("phase") in _ENDED:
        return True
    return "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
