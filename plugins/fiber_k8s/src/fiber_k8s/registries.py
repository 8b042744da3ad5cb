"""Registries: the form of names in each, login commands, how to fix a refused push, and which one a cluster has.

A cluster is known by its names in the kubeconfig: those of GKE, EKS and AKS lead to a registry, and
clusters on this host (kind, k3d, minikube, Docker Desktop) load images without one. Pure but for
:func:`configured_cluster`, which reads kubeconfigs.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Sequence

import attrs

from fiber.exceptions import BackendError, ConfigError
from fiber.images import Reference
from fiber_k8s.config import K8sConfig
from fiber_k8s.connection import read_kubeconfig
from fiber_k8s.in_pod import pod_evidence


class RegistryKind(enum.Enum):
    """Kind of a registry, by its host."""

    #: Amazon's Elastic Container Registry
    ECR = "ecr"
    #: Google's Artifact Registry
    ARTIFACT = "artifact"
    #: Google's older names, served by the same
    GCR = "gcr"
    #: Azure's Container Registry
    ACR = "acr"
    #: Docker Hub
    HUB = "hub"
    #: any other
    OTHER = "other"


@attrs.frozen(kw_only=True)
class Registry:
    """A registry that images are pushed to: a host, and a path in front of their names."""

    #: kind, by the host
    kind: RegistryKind
    #: host, with its port where it has one
    host: str
    #: path before an image's own name, without slashes at its ends; may be empty
    path: str = ""

    @property
    def prefix(self) -> str:
        """Host and path."""
        return f"{self.host}/{self.path}" if self.path else self.host

    def named(self, repository: str, tag: str) -> Reference:
        """Return the name of an image in it."""
        return Reference.parse(f"{self.prefix}/{repository}:{tag}")

    @property
    def login(self) -> str:
        """The command that logs in, where ``ENGINE`` stands for the engine's name."""
        if self.kind is RegistryKind.ECR:
            region = self.host.split(".")[3]
            ask = f"aws ecr get-login-password --region {region}"
            return f"{ask} | ENGINE login --username AWS --password-stdin {self.host}"
        if self.kind in (RegistryKind.ARTIFACT, RegistryKind.GCR):
            ask = "gcloud auth print-access-token"
            return f"{ask} | ENGINE login -u oauth2accesstoken --password-stdin {self.host}"
        if self.kind is RegistryKind.ACR:
            return f"az acr login --name {self.host.partition('.')[0]}"
        return f"ENGINE login {self.host}"

    def create(self, repository: str) -> str:
        """Return the command that creates a repository; "" where a push creates it."""
        name = f"{self.path}/{repository}" if self.path else repository
        if self.kind is RegistryKind.ECR:
            region = self.host.split(".")[3]
            return f"aws ecr create-repository --region {region} --repository-name {name}"
        if self.kind is RegistryKind.ARTIFACT:
            location = self.host.removesuffix("-docker.pkg.dev")
            project, folder = self.path.split("/")[:2]
            return (
                f"gcloud artifacts repositories create {folder} --repository-format=docker "
                f"--location={location} --project={project}"
            )
        if self.kind is RegistryKind.GCR:
            location = {"eu": "europe", "asia": "asia"}.get(self.host.partition(".")[0], "us")
            return (
                f"gcloud artifacts repositories create {self.host} --repository-format=docker "
                f"--location={location} --project={self.path.partition('/')[0]}"
            )
        return ""


_ECR = re.compile(r"\d{12}\.dkr\.ecr(?:-fips)?\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?")
_GCR = re.compile(r"(?:(?:us|eu|asia)\.)?gcr\.io")
_HUB = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
#: least number of parts of a path, and its form
_PATH_FORMS = {
    RegistryKind.ARTIFACT: (2, "PROJECT/REPOSITORY"),
    RegistryKind.GCR: (1, "PROJECT"),
    RegistryKind.HUB: (1, "ACCOUNT"),
}


def _kind_of(host: str) -> RegistryKind:
    """Return the kind of a registry, by its host."""
    if _ECR.fullmatch(host):
        return RegistryKind.ECR
    if host.endswith("-docker.pkg.dev"):
        return RegistryKind.ARTIFACT
    if _GCR.fullmatch(host):
        return RegistryKind.GCR
    if host.endswith((".azurecr.io", ".azurecr.cn", ".azurecr.us")):
        return RegistryKind.ACR
    return RegistryKind.HUB if host in _HUB else RegistryKind.OTHER


def registry(text: str) -> Registry:
    """Parse the value of ``--docker-registry``: a host, or a host and a path.

    Raises:
        ConfigError: it is not valid, or lacks the path that such a registry needs.
    """
    given = text.strip().rstrip("/")
    if "://" in given:
        msg = f"registry {text!r} is a URL: write {given.partition('://')[2]} alone"
        raise ConfigError(msg)
    # an account of Docker Hub is often written alone
    host, _, path = given.partition("/")
    if not _is_host(host):
        host, path = "docker.io", given
    try:
        parsed = Reference.parse(f"{host}/{path}/image" if path else f"{host}/image")
    except ValueError as error:
        msg = f"registry {text!r} cannot be used: {error}"
        raise ConfigError(msg) from None
    if parsed.registry != host or parsed.tag or not given:
        msg = f"registry {text!r} is none: write HOST, HOST:PORT or HOST/FOLDER"
        raise ConfigError(msg)
    kind = _kind_of(host)
    parts, form = _PATH_FORMS.get(kind, (0, ""))
    if len(path.split("/") if path else ()) < parts:
        msg = f"registry {text!r} needs more of a path: write {host}/{form}"
        raise ConfigError(msg)
    return Registry(kind=kind, host=host, path=path)


def _is_host(word: str) -> bool:
    return bool(set(word) & set(".:[")) or word == "localhost"


_DENIED = re.compile(
    r"denied|unauthorized|unauthenticated|authentication required|no basic auth|expired"
    r"|forbidden|\b40[13]\b",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"name[ _]unknown|repository .*(not found|does not exist)|\bnot found\b", re.IGNORECASE
)
_PLAIN = re.compile(r"HTTP response to HTTPS client", re.IGNORECASE)
_AWAY = re.compile(
    r"no such host|connection refused|i/o timeout|timed? ?out|no route to host|network is unreachable"
    r"|name resolution",
    re.IGNORECASE,
)


def advice(found: Registry, repository: str, engine: str, output: str) -> str:
    """Return how to fix a failed push."""
    create = found.create(repository)
    if _PLAIN.search(output):
        return (
            f"{found.host} speaks HTTP: name it among the engine's insecure registries, or give it "
            "a certificate"
        )
    if _AWAY.search(output):
        return f"{found.host} cannot be reached from here: see its name, the network and proxies"
    # registries often report a missing right as a missing repository
    if create and _MISSING.search(output):
        return f"there is no such repository: {create}"
    if _DENIED.search(output):
        login = found.login.replace("ENGINE", engine)
        also = f"; if you are: {create}" if create else ""
        return f"log in: {login}{also}"
    return f"see what the engine said, and whether {engine} push works by hand"


# -- clusters


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
    """Return the registry of a cluster, by its names and the hosts that the engine has credentials for.

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
            [
                host
                for host in hosts
                if _kind_of(host) is RegistryKind.ECR and f".{region}." in host
            ],
            f"the cluster is in Amazon's region {region}, and its account is not told",
            f"$(aws sts get-caller-identity --query Account --output text)"
            f".dkr.ecr.{region}.amazonaws.com",
        )
    if _AKS_SERVER.match(server):
        return _only(
            [host for host in hosts if _kind_of(host) is RegistryKind.ACR],
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
    read = read_kubeconfig(config)
    providers = [
        str((one.get("extension") or {}).get("provider", ""))
        for one in read.fields.get("extensions") or ()
    ]
    return Cluster(
        context=read.context,
        name=read.cluster,
        server=str(read.fields.get("server") or ""),
        provider="minikube" if any(one.startswith("minikube") for one in providers) else "",
    )
