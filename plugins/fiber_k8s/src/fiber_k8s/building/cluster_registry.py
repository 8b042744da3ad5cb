"""Names of the cluster in use, and by them its registry, or the command that loads images into local ones."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from fiber.exceptions import BackendError, BackendUnavailableError
from fiber_k8s.building.registries import Registry, RegistryKind, kind_of, registry
from fiber_k8s.config import K8sConfig
from fiber_k8s.in_pod import pod_evidence

__all__ = ["Cluster", "configured_cluster", "detect_registry", "load_command"]


_GKE = re.compile(r"gke_(?P<project>[a-z0-9.:-]+)_(?P<location>[a-z0-9-]+)_(?P<name>[a-z0-9-]+)")
_EKS = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):eks:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):cluster/.+"
)
_EKS_SERVER = re.compile(
    r"https://[^/]*\.(?P<region>[a-z0-9-]+)\.eks\.amazonaws\.com(?:\.cn)?(?:$|[:/])"
)
_AKS_SERVER = re.compile(r"https://[^/]*\.azmk8s\.(?:io|cn|us)(?:$|[:/])")
#: contexts whose nodes use the images of this host's engine
_SAME_ENGINE = frozenset(
    {"docker-desktop", "docker-for-desktop", "rancher-desktop", "orbstack", "colima"}
)


@attrs.frozen(kw_only=True)
class Cluster:
    """Names of a cluster in a kubeconfig; all empty for the cluster of the own pod."""

    #: name of the context
    context: str = ""
    #: name of the context's cluster
    name: str = ""
    #: URL of its API
    server: str = ""
    #: provider of a cluster on this host, where the kubeconfig names it
    provider: str = ""


def load_command(cluster: Cluster, image: str) -> Sequence[str] | None:
    """Return the command that loads an image of this host's engine into a cluster on this host.

    Empty where its nodes use the engine's images; None where the cluster needs a registry.
    """
    names = (cluster.context, cluster.name)
    for name in names:
        if name.startswith("kind-"):
            return ("kind", "load", "docker-image", image, "--name", name.removeprefix("kind-"))
        if name.startswith("k3d-"):
            return ("k3d", "image", "import", image, "--cluster", name.removeprefix("k3d-"))
        if name == "minikube" or (cluster.provider == "minikube" and name):
            return ("minikube", "image", "load", image, "--profile", name)
        if name in _SAME_ENGINE:
            return ()
    return None


def detect_registry(cluster: Cluster, hosts: Sequence[str]) -> Registry:
    """Return the registry of a cluster, by its names and server.

    Args:
        cluster: the cluster.
        hosts: registries that the engine has credentials for.

    Raises:
        BackendError: it is not known; the message says how to name it.
    """
    for name in (cluster.context, cluster.name):
        if match := _GKE.fullmatch(name):
            # a domain-scoped project has a colon, which is a slash in image names
            return registry(f"gcr.io/{match['project'].replace(':', '/')}")
        if match := _EKS.fullmatch(name):
            end = ".cn" if match["partition"] == "aws-cn" else ""
            return registry(f"{match['account']}.dkr.ecr.{match['region']}.amazonaws.com{end}")
    server = cluster.server
    if match := _EKS_SERVER.match(server):
        region = match["region"]
        return _only(
            [host for host in hosts if kind_of(host) is RegistryKind.ECR and f".{region}." in host],
            f"the cluster is in Amazon's region {region}, and its account is not told",
            f"$(aws sts get-caller-identity --query Account --output text)"
            f".dkr.ecr.{region}.amazonaws.com",
        )
    if _AKS_SERVER.match(server):
        return _only(
            [host for host in hosts if kind_of(host) is RegistryKind.ACR],
            "the cluster is Azure's, and which registry is attached to it is not told",
            "NAME.azurecr.io",
        )
    what = f"context {cluster.context!r}" if cluster.context else "this cluster"
    known = f" (the engine has credentials for {', '.join(hosts)})" if hosts else ""
    msg = (
        f"which registry {what} pulls from cannot be told{known}: name one with "
        "--docker-registry HOST/FOLDER, or FIBER_K8S_REGISTRY; or an image that exists, with --image"
    )
    raise BackendError(msg)


def _only(hosts: Sequence[str], why: str, example: str) -> Registry:
    if len(hosts) == 1:
        return registry(hosts[0])
    several = f", and the engine has credentials for {', '.join(hosts)}" if hosts else ""
    msg = (
        f"{why}{several}: name the registry with --docker-registry {example}, or FIBER_K8S_REGISTRY"
    )
    raise BackendError(msg)


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
