"""What a process can tell of the pod that it runs in, without asking the cluster."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from fiber._base import values

__all__ = ["MARK", "SERVICE_ACCOUNT", "Inside", "evidence_of_a_pod", "look_around"]

#: set in pods of jobs: they have their starter's settings, and another place
MARK = "_FIBER_K8S"
#: where a pod finds its credentials
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SERVICE = "KUBERNETES_SERVICE_HOST"
_MOUNTS = Path("/proc/self/mountinfo")
#: where nodes keep what containers leave; what is before it differs with their file systems
_FOLDER = re.compile(r"/pods/[0-9a-f-]+/containers/([a-z0-9-]+)/[^/ ]+ ")


@values.frozen(kw_only=True)
class Inside:
    """The pod that this process runs in."""

    #: its namespace
    namespace: str
    #: its name; where the token does not tell, the host's name, which is nearly always the same
    pod: str
    #: its unique id, where the token tells
    uid: str | None = None
    #: the container of it, where the kernel tells
    container: str | None = None


def evidence_of_a_pod(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> str | None:
    """What shows that this process runs in a pod that may use the API; None outside."""
    if not environ.get(_SERVICE):
        return None
    if not (folder / "token").exists():
        # such a pod has no way to start others
        return None
    return f"{_SERVICE} is set and {folder / 'token'} is there"


@functools.cache
def look_around(folder: Path = SERVICE_ACCOUNT, mounts: Path = _MOUNTS) -> Inside | None:
    """The pod that this process runs in; None outside."""
    try:
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        token = (folder / "token").read_text(encoding="utf-8")
    except OSError:
        return None
    told = _claims(token).get("kubernetes.io", {}).get("pod", {})
    # a host's name may be set, shortened, or the node's; the token's is the pod's own
    return Inside(
        namespace=namespace,
        pod=told.get("name") or socket.gethostname(),
        uid=told.get("uid"),
        container=_container(mounts),
    )


def _container(mounts: Path) -> str | None:
    """The container that this is: its node mounts a file for last words, from a folder of that name."""
    try:
        told = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _FOLDER.search(told)
    return found[1] if found else None


def _claims(token: str) -> dict[str, dict[str, dict[str, str]]]:
    """What a token says of its bearer; it is our own, so nothing is proved here."""
    parts = token.strip().split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return found if isinstance(found, dict) else {}
