"""Detection of the pod that this process runs in, from its environment and files alone.

No request is made: the service account's token, mounts and variables say it all.
"""

from __future__ import annotations

import functools
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from fiber._base import values

#: variable set in the pods of jobs: these inherit their parent's settings, and run elsewhere
JOB_VARIABLE = "_FIBER_K8S"
#: the folder with a pod's credentials
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SERVICE = "KUBERNETES_SERVICE_HOST"
_MOUNTS = Path("/proc/self/mountinfo")
#: a node's folder of termination messages; what is before it differs with their file systems
_FOLDER = r"/pods/[0-9a-f-]+/containers/([a-z0-9-]+)/[^/ ]+ "


@values.frozen(kw_only=True)
class OwnPod:
    """The pod that this process runs in."""

    #: its namespace
    namespace: str
    #: its name; without one in the token the host name, which is nearly always the same
    name: str
    #: name of the container, where the mounts show it
    container: str | None = None


def pod_evidence(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> str | None:
    """Return why this process seems to run in a pod that can use the API; None outside."""
    if not environ.get(_SERVICE):
        return None
    if not (folder / "token").exists():
        # without credentials it cannot start other pods
        return None
    return f"{_SERVICE} is set and {folder / 'token'} is there"


@functools.cache
def read_own_pod(folder: Path = SERVICE_ACCOUNT, mounts: Path = _MOUNTS) -> OwnPod | None:
    """Return the pod that this process runs in; None outside. Cached."""
    try:
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        token = (folder / "token").read_text(encoding="utf-8")
    except OSError:
        return None
    claims = _claims(token).get("kubernetes.io", {}).get("pod", {})
    # a host name may be set, shortened, or the node's; the token has the pod's own
    return OwnPod(
        namespace=namespace,
        name=claims.get("name") or socket.gethostname(),
        container=_container(mounts),
    )


def _container(mounts: Path) -> str | None:
    """Return this container's name, from the folder of its termination message's mount."""
    try:
        mountinfo = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(_FOLDER, mountinfo)
    return found[1] if found else None


def _claims(token: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the claims of a JSON Web Token (RFC 7519); the signature of our own is not checked."""
    # imported here, since all programs import this module, and those in pods alone need it
    import base64

    parts = token.strip().split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
