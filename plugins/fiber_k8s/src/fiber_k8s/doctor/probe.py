"""What is asked inside a pod: Python and Fiber there, the rights of its account, ways to others.

This source is an argument of a Python that need not have Fiber, so it imports the standard library
alone. What it finds it prints, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

TYPE_CHECKING = False
if TYPE_CHECKING:
    # imported by those who check types alone: the pod's Python need not have it
    from typing import Any

#: stands before each line that is ours
MARK = "fiber-probe: "
#: what a listener answers
WORD = b"fiber\n"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
#: seconds for any one question, and for which a listener waits to be dialled
_TIMEOUT = 10.0
_LISTENS = 120.0
_TRIED = "import cloudpickle, pynng, fiber, fiber._agent.job"


def main(words: list[str]) -> int:
    """Look around, then do what the second word says: ``listen``, or ``dial HOST PORT``."""
    say(python=platform.python_version(), **fiber())
    say(**account(json.loads(words[0])))
    if words[1] == "listen":
        listen()
    else:
        say(dialled=dial(words[2], int(words[3])))
    return 0


def say(**found: Any) -> None:
    """Print what was found."""
    print(MARK + json.dumps(found), flush=True)  # noqa: T201 - what it is for


def fiber() -> dict[str, Any]:
    """Versions of Fiber's distributions, and why the core cannot be used."""
    from importlib import metadata

    versions = {}
    for name in ("fiber-core", "fiber-k8s"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    # a process of its own: a library that is made for another system may end it
    done = subprocess.run(
        [sys.executable, "-c", _TRIED], capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines()
    failure = (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""
    return {"versions": versions, "failure": failure, "executable": sys.executable}


def account(rights: list[list[str]]) -> dict[str, Any]:
    """Whether the cluster answers, and which rights this pod's account has in its namespace."""
    try:
        with open(f"{_ACCOUNT}/token") as file:
            token = file.read().strip()
        with open(f"{_ACCOUNT}/namespace") as file:
            namespace = file.read().strip()
        context = ssl.create_default_context(cafile=f"{_ACCOUNT}/ca.crt")
        # newer Pythons want more of certificates than some clusters' have
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        allowed = [may(token, context, namespace, right) for right in rights]
    except (OSError, ValueError, KeyError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return {"account": str(reason) or type(error).__name__, "allowed": None}
    return {"account": "", "allowed": allowed}


def may(token: str, context: ssl.SSLContext, namespace: str, right: list[str]) -> bool:
    """Ask the cluster whether this account may do one thing."""
    verb, group, resource, sub = right
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    if sub:
        asked["subresource"] = sub
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    request = urllib.request.Request(
        f"https://{host}:{port}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    # pods reach the cluster's API without the proxy that they reach others with
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(request, timeout=_TIMEOUT) as answer:
        return bool(json.load(answer)["status"]["allowed"])


def listen() -> None:
    """Tell on which port this pod listens, and answer whoever dials, until nobody does."""
    if socket.has_dualstack_ipv6():
        server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        server = socket.create_server(("", 0))
    with server:
        server.settimeout(_LISTENS)
        say(port=server.getsockname()[1])
        try:
            while True:
                peer, _ = server.accept()
                with peer:
                    peer.settimeout(_TIMEOUT)
                    peer.sendall(WORD)
        except TimeoutError:
            return


def dial(host: str, port: int) -> str:
    """Dial another pod; why that failed, "" where it did not."""
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT) as peer:
            told = peer.recv(len(WORD))
    except OSError as error:
        return str(error) or type(error).__name__
    return "" if told == WORD else f"somebody else answers there: {told!r}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
