"""A namespace of a real cluster, used as tests use an emulated one."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from control_plane import ControlPlane
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.run_objects import LEASES
from k8s_masters import grant

_RIGHTS = "rbac.authorization.k8s.io/v1"
_GROUPS = {"leases": LEASES, "roles": _RIGHTS, "rolebindings": _RIGHTS}
_MADE = {"labelSelector": "app.kubernetes.io/managed-by=fiber"}


class Namespace:
    """One with a service account that has the least rights; close it.

    Args:
        plane: the cluster.
        name: of a namespace that is not there yet.
    """

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        self.kubeconfig = plane.kubeconfig_for(name)
        self._client = Client(K8sConfig(kubeconfig=str(self.kubeconfig)))
        body = {"metadata": {"name": name}}
        self._client.call("POST", "/api/v1/namespaces", f"make namespace {name}", body=body)
        grant(self, name)
        # pods are refused before it has a token
        self.wait_for("serviceaccounts", _have_tokens)

    def create(self, plural: str, thing: Mapping[str, Any], namespace: str = "") -> None:
        """Make an object."""
        path = self._client.path(plural, group=_GROUPS.get(plural, ""))
        self._client.call("POST", path, f"create {plural}", body=thing)

    def objects(self, plural: str, **query: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        path = self._client.path(plural, group=_GROUPS.get(plural, ""))
        return list(self._client.call("GET", path, f"list {plural}", query=query)["items"])

    def made_by_fiber(self) -> dict[str, str]:
        """What Fiber has made and is there: uids by kinds and names."""
        return {
            f"{plural} {thing['metadata']['name']}": thing["metadata"]["uid"]
            for plural in ("leases", "secrets", "pods")
            for thing in self.objects(plural, **_MADE)
        }

    def wait_for(
        self, plural: str, test: Callable[[list[dict[str, Any]]], Any], *, timeout: float = 120.0
    ) -> Any:
        """Wait until a test of all objects of a kind is true; the answer is the test's."""
        deadline = time.monotonic() + timeout
        while not (found := test(things := self.objects(plural))):
            assert time.monotonic() < deadline, f"{plural} did not become so: {things}"
            # a watch for each of many namespaces would be more work for everybody
            time.sleep(0.5)
        return found

    def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        """Delete a pod as somebody else would."""
        self._client.delete("pods", name, grace=grace)

    def close(self) -> None:
        """Have it deleted with all that is in it."""
        self._client.call("DELETE", f"/api/v1/namespaces/{self.name}", f"delete {self.name}")
        self._client.close()


def _have_tokens(accounts: list[dict[str, Any]]) -> bool:
    return bool(accounts) and all(one.get("secrets") for one in accounts)
