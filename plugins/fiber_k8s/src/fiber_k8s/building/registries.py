"""Registries: the form of names in each, login commands, and how to fix a refused push; pure."""

from __future__ import annotations

import enum
import re

import attrs

from fiber.exceptions import ConfigError
from fiber.images import Reference

__all__ = ["Registry", "RegistryKind", "advice", "kind_of", "registry"]


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


def kind_of(host: str) -> RegistryKind:
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
    kind = kind_of(host)
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
