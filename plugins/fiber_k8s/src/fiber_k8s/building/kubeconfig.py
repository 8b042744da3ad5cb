"""Names of the cluster in use, from the kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fiber.exceptions import BackendUnavailableError
from fiber_k8s.building.cluster_registry import Cluster
from fiber_k8s.config import K8sConfig
from fiber_k8s.in_pod import pod_evidence

__all__ = ["configured_cluster"]


def configured_cluster(config: K8sConfig) -> Cluster:
    """Return the names of the cluster in use; empty ones in a pod of it.

    Raises:
        BackendUnavailableError: the kubeconfig cannot be read.
    """
    explicit = config.context or config.kubeconfig
    if not explicit and pod_evidence(os.environ):
        return Cluster()
    where = config.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(one).expanduser() for one in where.split(os.pathsep) if one]
    return read([_content(file) for file in files if file.is_file()], config.context)


def read(kubeconfigs: Sequence[Mapping[str, Any]], named: str | None) -> Cluster:
    """Return the names of a context's cluster.

    Args:
        kubeconfigs: contents of the files; the first one with an entry counts, as for kubectl.
        named: name of the context; None for the current one.
    """
    current = (str(one.get("current-context") or "") for one in kubeconfigs)
    context = named or next(filter(None, current), "")
    name = str(_named(kubeconfigs, "contexts", context).get("cluster") or "")
    cluster = _named(kubeconfigs, "clusters", name)
    providers = [
        str((one.get("extension") or {}).get("provider", ""))
        for one in cluster.get("extensions") or ()
    ]
    return Cluster(
        context=context,
        name=name,
        server=str(cluster.get("server") or ""),
        provider="minikube" if any(one.startswith("minikube") for one in providers) else "",
    )


def _named(kubeconfigs: Sequence[Mapping[str, Any]], kind: str, name: str) -> Mapping[str, Any]:
    entries = (one for content in kubeconfigs for one in content.get(kind) or ())
    found: Mapping[str, Any] = next((one for one in entries if one.get("name") == name), {})
    inner: Mapping[str, Any] = found.get(kind.removesuffix("s")) or {}
    return inner


def _content(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        msg = f"{file} cannot be read: {error}; see KUBECONFIG"
        raise BackendUnavailableError(msg) from error
    if not isinstance(content, Mapping):
        msg = f"{file} is no kubeconfig; see KUBECONFIG"
        raise BackendUnavailableError(msg)
    return content
