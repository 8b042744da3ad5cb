"""Probe that runs inside a pod: checks Python, Fiber, its account's rights, and TCP to other pods.

This source is passed as an argument to a Python that need not have Fiber, so it imports the
standard library alone. It prints its findings as lines of JSON with a prefix.
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
    # for type checkers alone: the pod's Python need not have it
    from collections.abc import Sequence
    from typing import Any

#: path of access reviews in the cluster's API
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
#: prefix of the probe's lines
LINE_PREFIX = "fiber-probe: "
#: bytes that a listener sends to each connection
ANSWER = b"fiber\n"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TRIED = "import cloudpickle, pynng, fiber, fiber._agent.job"


def main(words: list[str]) -> int:
    """Report on the pod, then run the second word: ``listen``, or ``dial HOST PORT``."""
    report(python=platform.python_version(), **fiber())
    report(**account(json.loads(words[0])))
    if words[1] == "listen":
        listen()
    else:
        report(dialled=dial(words[2], int(words[3])))
    return 0


def report(**found: Any) -> None:
    """Print facts as a line of JSON."""
    print(LINE_PREFIX + json.dumps(found), flush=True)  # noqa: T201 - what it is for


def fiber() -> dict[str, Any]:
    """Return versions of Fiber's distributions, and why the core cannot be imported."""
    from importlib import metadata

    versions = {}
    for name in ("fiber-core", "fiber-k8s"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    # in a process of its own: a library built for another system may crash it
    done = subprocess.run(
        [sys.executable, "-c", _TRIED], capture_output=True, text=True, check=False
    )
    lines = done.stderr.strip().splitlines()
    failure = (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""
    return {"versions": versions, "failure": failure, "executable": sys.executable}


def account(rights: list[list[str]]) -> dict[str, Any]:
    """Return whether the cluster answers, and the rights of this pod's account in its namespace."""
    try:
        with open(f"{_ACCOUNT}/token") as file:
            token = file.read().strip()
        with open(f"{_ACCOUNT}/namespace") as file:
            namespace = file.read().strip()
        context = ssl.create_default_context(cafile=f"{_ACCOUNT}/ca.crt")
        # Python 3.13 demands key identifiers, which some clusters' certificates lack
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        allowed = [is_allowed(token, context, namespace, right) for right in rights]
    except (OSError, ValueError, KeyError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return {"account": str(reason) or type(error).__name__, "allowed": None}
    return {"account": "", "allowed": allowed}


def review(namespace: str, right: Sequence[str]) -> dict[str, Any]:
    """Return a SelfSubjectAccessReview of a right: verb, API group, resource and subresource."""
    verb, group, resource, sub = right
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    if sub:
        asked["subresource"] = sub
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }


def is_allowed(
    token: str, context: ssl.SSLContext, namespace: str, right: list[str], timeout: float = 10.0
) -> bool:
    """Return whether this account has one right."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    request = urllib.request.Request(
        f"https://{host}:{port}{REVIEWS}",
        data=json.dumps(review(namespace, right)).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    # pods reach the cluster's API without an HTTP proxy
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(request, timeout=timeout) as answer:
        return bool(json.load(answer)["status"]["allowed"])


def listen(patience: float = 120.0, timeout: float = 10.0) -> None:
    """Report a port, and answer connections to it until none comes for some time.

    Args:
        patience: seconds to wait for a connection.
        timeout: seconds for its answer to be taken.
    """
    if socket.has_dualstack_ipv6():
        server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        server = socket.create_server(("", 0))
    with server:
        server.settimeout(patience)
        report(port=server.getsockname()[1])
        try:
            while True:
                peer, _ = server.accept()
                with peer:
                    peer.settimeout(timeout)
                    peer.sendall(ANSWER)
        except TimeoutError:
            return


def dial(host: str, port: int, timeout: float = 10.0) -> str:
    """Dial another pod; return why that failed, "" where it did not."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as peer:
            answer = peer.recv(len(ANSWER))
    except OSError as error:
        return str(error) or type(error).__name__
    return "" if answer == ANSWER else f"somebody else answers there: {answer!r}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
