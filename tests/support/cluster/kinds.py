"""The resources that the emulated API server has: names, groups and subresources."""

from __future__ import annotations

import attrs

__all__ = ["CUSTOM", "RESOURCES", "Resource", "by_kind", "of"]


@attrs.frozen
class Resource:
    """One kind of object, as the API server publishes it."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    subresources: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    #: for kinds whose objects come and go with their status: an update of the one keeps the other
    status: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As messages name it: ``pods``, ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_POD_PARTS = (
    "attach",
    "binding",
    "ephemeralcontainers",
    "eviction",
    "exec",
    "log",
    "portforward",
    "resize",
    "status",
)
_RBAC = "rbac.authorization.k8s.io"

RESOURCES = (
    Resource("", "v1", "Namespace", "namespaces", False, ("status", "finalize"), True),
    Resource("", "v1", "Node", "nodes", False, ("status",), True),
    Resource("", "v1", "Pod", "pods", True, _POD_PARTS, True),
    Resource("", "v1", "Secret", "secrets"),
    Resource("", "v1", "ConfigMap", "configmaps"),
    Resource("", "v1", "Event", "events"),
    Resource("", "v1", "Service", "services", True, ("status",), True),
    Resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, ("status",), True),
    Resource("", "v1", "PersistentVolume", "persistentvolumes", False, ("status",), True),
    Resource("", "v1", "ServiceAccount", "serviceaccounts", True, ("token",)),
    Resource("", "v1", "ResourceQuota", "resourcequotas", True, ("status",), True),
    Resource("", "v1", "LimitRange", "limitranges"),
    Resource("apps", "v1", "Deployment", "deployments", True, ("status",), True),
    Resource("apps", "v1", "ReplicaSet", "replicasets", True, ("status",), True),
    Resource("apps", "v1", "StatefulSet", "statefulsets", True, ("status",), True),
    Resource("batch", "v1", "Job", "jobs", True, ("status",), True),
    Resource("coordination.k8s.io", "v1", "Lease", "leases"),
    Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True, ("status",), True),
    Resource(_RBAC, "v1", "Role", "roles"),
    Resource(_RBAC, "v1", "RoleBinding", "rolebindings"),
    Resource(_RBAC, "v1", "ClusterRole", "clusterroles", False),
    Resource(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", False),
    Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False),
    Resource("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", False),
    Resource("storage.k8s.io", "v1", "StorageClass", "storageclasses", False),
    Resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    # what the usual gang schedulers bring along
    Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups", True, ("status",), True),
    Resource("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups", True, ("status",), True),
    Resource("kueue.x-k8s.io", "v1beta1", "LocalQueue", "localqueues", True, ("status",), True),
    # only ever created, never kept: reviews answer at once
    Resource("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False),
    Resource("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", False),
    Resource("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", False),
)  # fmt: skip

#: groups that no cluster has unless somebody installs them, see ``gangs``
CUSTOM = frozenset({"scheduling.x-k8s.io", "scheduling.volcano.sh", "kueue.x-k8s.io"})

_BY_PATH = {(item.group, item.version, item.plural): item for item in RESOURCES}
_BY_PLURAL = {item.plural: item for item in reversed(RESOURCES)}
_BY_KIND = {(item.api_version, item.kind): item for item in RESOURCES}


def of(plural: str, group: str | None = None, version: str = "v1") -> Resource | None:
    """The resource of a path, or of a plural alone; None where there is none."""
    if group is None:
        return _BY_PLURAL.get(plural)
    return _BY_PATH.get((group, version, plural))


def by_kind(api_version: str, kind: str) -> Resource | None:
    """The resource of an owner reference or a role's subject."""
    return _BY_KIND.get((api_version, kind))


NAMESPACES = _BY_PLURAL["namespaces"]
NODES = _BY_PLURAL["nodes"]
PODS = _BY_PLURAL["pods"]
SECRETS = _BY_PLURAL["secrets"]
CONFIG_MAPS = _BY_PLURAL["configmaps"]
EVENTS = _BY_PLURAL["events"]
CLAIMS = _BY_PLURAL["persistentvolumeclaims"]
ACCOUNTS = _BY_PLURAL["serviceaccounts"]
QUOTAS = _BY_PLURAL["resourcequotas"]
LIMIT_RANGES = _BY_PLURAL["limitranges"]
LEASES = _BY_PLURAL["leases"]
ROLES = _BY_PLURAL["roles"]
ROLE_BINDINGS = _BY_PLURAL["rolebindings"]
CLUSTER_ROLES = _BY_PLURAL["clusterroles"]
CLUSTER_ROLE_BINDINGS = _BY_PLURAL["clusterrolebindings"]
PRIORITY_CLASSES = _BY_PLURAL["priorityclasses"]
BUDGETS = _BY_PLURAL["poddisruptionbudgets"]
STORAGE_CLASSES = _BY_PLURAL["storageclasses"]
RUNTIME_CLASSES = _BY_PLURAL["runtimeclasses"]
