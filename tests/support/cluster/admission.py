"""Admission: what the API server changes in new objects, and what it refuses by policy."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from . import defaults
from .kinds import ACCOUNTS, NAMESPACES, PODS, PRIORITY_CLASSES, RUNTIME_CLASSES, Resource
from .podsecurity import ENFORCE, complaint
from .quota import apply_limits, charge
from .refusals import Refused
from .store import Object, Store

__all__ = ["Admission"]

_BUILT_IN = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


@attrs.define
class Admission:
    """The plugins that a cluster has by default."""

    store: Store
    #: webhooks of what was installed
    mutators: list[Callable[[Resource, Object], None]] = attrs.field(factory=list)

    def mutate(self, resource: Resource, thing: Object) -> None:
        """Complete a new object, before it is validated."""
        if resource is not PODS or not isinstance(thing.get("spec"), dict):
            return
        spec = thing["spec"]
        self._account(thing)
        apply_limits(self.store, thing)
        self._priority(thing)
        runtime = spec.get("runtimeClassName")
        if runtime and self.store.get(RUNTIME_CLASSES, None, runtime) is None:
            why = f'pod rejected: RuntimeClass "{runtime}" not found'
            raise Refused.forbidden(PODS, _name(thing), why)
        if spec.get("overhead") and not runtime:
            why = (
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            )
            raise Refused.forbidden(PODS, _name(thing), why)
        defaults.tolerations(spec)
        for mutator in self.mutators:
            mutator(resource, thing)

    def validate(self, resource: Resource, thing: Object) -> Callable[[], None]:
        """Refuse what a policy or a quota forbids; what is returned is called when it is kept."""
        if resource is PODS:
            self._secure(thing)
        return charge(self.store, resource, thing)

    def _secure(self, thing: Object) -> None:
        namespace = self.store.get(NAMESPACES, None, thing["metadata"]["namespace"])
        labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
        why = complaint(labels.get(ENFORCE, ""), thing["spec"])
        if why:
            raise Refused.forbidden(PODS, _name(thing), why)

    def _account(self, thing: Object) -> None:
        spec = thing["spec"]
        spec.setdefault("serviceAccountName", "default")
        spec["serviceAccountName"] = spec["serviceAccountName"] or "default"
        spec["serviceAccount"] = name = spec["serviceAccountName"]
        namespace = thing["metadata"]["namespace"]
        account = self.store.get(ACCOUNTS, namespace, name)
        if account is None:
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise Refused.forbidden(PODS, _name(thing), why)
        if "imagePullSecrets" not in spec and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = list(account["imagePullSecrets"])
        wanted = spec.get("automountServiceAccountToken")
        if wanted is None:
            wanted = account.get("automountServiceAccountToken", True)
        if wanted and spec.get("containers"):
            defaults.token_volume(spec)

    def _priority(self, thing: Object) -> None:
        spec = thing["spec"]
        name = spec.get("priorityClassName", "")
        found, value, policy = None, 0, "PreemptLowerPriority"
        if name in _BUILT_IN:
            value = _BUILT_IN[name]
        elif name:
            found = self.store.get(PRIORITY_CLASSES, None, name)
            if found is None:
                why = f"no PriorityClass with name {name} was found"
                raise Refused.forbidden(PODS, _name(thing), why)
        else:
            found = next(
                (item for item in self.store.list(PRIORITY_CLASSES) if item.get("globalDefault")),
                None,
            )
            if found is not None:
                spec["priorityClassName"] = found["metadata"]["name"]
        if found is not None:
            value = found["value"]
            policy = found.get("preemptionPolicy", policy)
        if spec.get("priority", value) != value:
            why = (
                f"the integer value of priority ({spec['priority']}) must not be provided in pod "
                "spec; priority admission controller computed "
                f"{value} from the given PriorityClass name"
            )
            raise Refused.forbidden(PODS, _name(thing), why)
        spec["priority"] = value
        spec.setdefault("preemptionPolicy", policy)


def _name(thing: Object) -> str:
    return str(thing["metadata"].get("name") or "")
