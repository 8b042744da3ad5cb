"""What other controllers do: accounts and certificates of namespaces, claims, quotas, nodes."""

from __future__ import annotations

import attrs

from .deletion import Deletion
from .happenings import Happenings
from .kinds import ACCOUNTS, CLAIMS, CONFIG_MAPS, NAMESPACES, PODS, STORAGE_CLASSES
from .quota import recount
from .store import Object, Store, Subscription, clone

__all__ = ["Controllers"]

_DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal "
    "endpoints such as the internal service IP or kubernetes.default.svc. No other usage is "
    "guaranteed across distributions of Kubernetes clusters."
)


@attrs.define
class Controllers:
    """Completes namespaces, binds claims and counts quotas."""

    store: Store
    deletion: Deletion
    happenings: Happenings
    authority: str

    async def run(self, changes: Subscription) -> None:
        """Do what changes ask for, until the subscription is closed."""
        async for change in changes:
            thing, gone = change.object, change.type == "DELETED"
            if change.resource is NAMESPACES and change.type == "ADDED":
                self.complete(thing["metadata"]["name"])
            elif change.resource is CLAIMS and not gone:
                self._claim(thing)
            elif change.resource is PODS and (
                gone or thing["status"].get("phase") in {"Succeeded", "Failed"}
            ):
                recount(self.store, thing["metadata"]["namespace"])
                self._unused(thing)
            elif change.resource.plural == "resourcequotas" and change.type == "ADDED":
                recount(self.store, thing["metadata"]["namespace"])

    def complete(self, namespace: str) -> None:
        """Give a namespace its default service account and the cluster's certificate."""
        there = self.store.get(NAMESPACES, None, namespace)
        if there is None or "deletionTimestamp" in there["metadata"]:
            return
        if self.store.get(ACCOUNTS, namespace, "default") is None:
            account: Object = {
                "kind": "ServiceAccount",
                "apiVersion": "v1",
                "metadata": {"name": "default", "namespace": namespace},
            }
            self.store.create(ACCOUNTS, account)
        if self.store.get(CONFIG_MAPS, namespace, "kube-root-ca.crt") is None:
            certificate: Object = {
                "kind": "ConfigMap",
                "apiVersion": "v1",
                "metadata": {
                    "name": "kube-root-ca.crt",
                    "namespace": namespace,
                    "annotations": {"kubernetes.io/description": _DESCRIPTION},
                },
                "data": {"ca.crt": self.authority},
            }
            self.store.create(CONFIG_MAPS, certificate)

    def _claim(self, claim: Object) -> None:
        """Bind a claim whose storage class exists, or that asks for none in particular."""
        if "deletionTimestamp" in claim["metadata"]:
            self.release(claim)
            return
        if claim["status"].get("phase") != "Pending":
            return
        wanted = claim["spec"].get("storageClassName")
        if wanted and self.store.get(STORAGE_CLASSES, None, wanted) is None:
            message = f'storageclass.storage.k8s.io "{wanted}" not found'
            self.happenings.tell(
                claim,
                "ProvisioningFailed",
                message,
                by="persistentvolume-controller",
                warning=True,
            )
            return
        new = clone(claim)
        new["metadata"].setdefault("finalizers", ["kubernetes.io/pvc-protection"])
        new["spec"]["volumeName"] = f"pvc-{claim['metadata']['uid']}"
        new["status"] = {
            "phase": "Bound",
            "accessModes": claim["spec"].get("accessModes") or ["ReadWriteOnce"],
            "capacity": (claim["spec"].get("resources") or {}).get("requests") or {},
        }
        self.store.update(CLAIMS, new)

    def _unused(self, pod: Object) -> None:
        """Let go of claims that are being deleted and that no pod uses any more."""
        namespace = pod["metadata"]["namespace"]
        for claim in self.store.list(CLAIMS, namespace):
            if "deletionTimestamp" in claim["metadata"]:
                self.release(claim)

    def release(self, claim: Object) -> None:
        """Let a claim go if no pod uses it."""
        meta = claim["metadata"]
        if self.store.get(CLAIMS, meta["namespace"], meta["name"]) is None:
            return
        for pod in self.store.list(PODS, meta["namespace"]):
            if pod["status"].get("phase") in {"Succeeded", "Failed"}:
                continue
            for volume in pod["spec"].get("volumes") or ():
                used = (volume.get("persistentVolumeClaim") or {}).get("claimName")
                if used == meta["name"]:
                    return
        new = clone(claim)
        new["metadata"].pop("finalizers", None)
        self.deletion.finish(CLAIMS, self.store.update(CLAIMS, new))
