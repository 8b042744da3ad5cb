"""What the engine is told to make of a container of a pod. No time, no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .podenv import expand
from .quantities import parse
from .runtime import Mount, StartRefused
from .store import Object

__all__ = ["container_config", "hostname"]

_CPU_PERIOD = 100_000


def hostname(pod: Object) -> str:
    """The host name that a pod sees."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"][:63].rstrip("-."))


def container_config(
    pod: Object,
    container: Object,
    environ: Mapping[str, str],
    mounts: Sequence[Mount],
    image: Any,
) -> dict[str, Any]:
    """The body of the engine's request.

    Args:
        pod: whose container it is.
        container: its specification.
        environ: all its variables.
        mounts: its volumes.
        image: what the engine says of its image; None for a container of the kubelet's own.
    """
    known = dict(environ)
    config: dict[str, Any] = {
        "Image": container["image"],
        "Env": [f"{name}={value}" for name, value in environ.items()],
        "Hostname": hostname(pod),
        "OpenStdin": bool(container.get("stdin")),
        "StdinOnce": bool(container.get("stdinOnce")),
        "Tty": bool(container.get("tty")),
        "HostConfig": _host(pod, container, mounts),
    }
    if container.get("command"):
        config["Entrypoint"] = [expand(word, known) for word in container["command"]]
        config["Cmd"] = []
    if container.get("args"):
        config["Cmd"] = [expand(word, known) for word in container["args"]]
    if container.get("workingDir"):
        config["WorkingDir"] = container["workingDir"]
    config["User"] = _user(pod, container, image)
    return config


def _host(pod: Object, container: Object, mounts: Sequence[Mount]) -> dict[str, Any]:
    context = container.get("securityContext") or {}
    capabilities = context.get("capabilities") or {}
    told: dict[str, Any] = {
        "Binds": [f"{m.source}:{m.target}{':ro' if m.read_only else ''}" for m in mounts],
        "ReadonlyRootfs": bool(context.get("readOnlyRootFilesystem")),
        "Privileged": bool(context.get("privileged")),
        "CapAdd": list(capabilities.get("add") or ()),
        "CapDrop": list(capabilities.get("drop") or ()),
        "LogConfig": {"Type": "json-file", "Config": {}},
    }
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if "memory" in limits:
        # no swap besides, as on a node without swap
        told["Memory"] = told["MemorySwap"] = int(parse(limits["memory"]))
    if "cpu" in limits:
        told["CpuPeriod"] = _CPU_PERIOD
        told["CpuQuota"] = max(1000, int(parse(limits["cpu"]) * _CPU_PERIOD))
    if "cpu" in requests:
        told["CpuShares"] = max(2, int(parse(requests["cpu"]) * 1024))
    if pod["spec"].get("hostPID"):
        told["PidMode"] = "host"
    if pod["spec"].get("hostIPC"):
        told["IpcMode"] = "host"
    hosts = pod["spec"].get("hostAliases") or ()
    told["ExtraHosts"] = [f"{name}:{item['ip']}" for item in hosts for name in item["hostnames"]]
    return told


def _user(pod: Object, container: Object, image: Any) -> str:
    whole, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    user = own.get("runAsUser", whole.get("runAsUser"))
    group = own.get("runAsGroup", whole.get("runAsGroup"))
    if own.get("runAsNonRoot", whole.get("runAsNonRoot")):
        there = user if user is not None else ((image or {}).get("Config") or {}).get("User") or "0"
        if str(there).partition(":")[0] in {"0", "root"}:
            meta = pod["metadata"]
            text = (
                "container has runAsNonRoot and image will run as root (pod: "
                f'"{meta["name"]}_{meta["namespace"]}({meta["uid"]})", container: '
                f"{container['name']})"
            )
            raise StartRefused("CreateContainerConfigError", text)
    if user is None and group is None:
        return ""
    return f"{0 if user is None else user}:{0 if group is None else group}"
