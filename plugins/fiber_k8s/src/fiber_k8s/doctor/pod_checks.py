"""What a pod finds that is made as those of jobs are: its image, its account, its ways to others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fiber._wire.interfaces import interfaces
from fiber.exceptions import BackendError
from fiber.model import Check, ReasonKind
from fiber_k8s.address import choose
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.doctor.pods import Found, Probe, listening
from fiber_k8s.doctor.rights import judge
from fiber_k8s.rbac import EVERYBODYS, rights

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["run_checks"]

_POD = "a pod from start to end"
_FIXES = {
    ReasonKind.IMAGE: "see the image's name, and for a private registry FIBER_K8S_PULL_SECRETS: "
    "kubectl create secret docker-registry NAME --docker-server=… --docker-username=…",
    ReasonKind.UNSCHEDULABLE: "see kubectl describe nodes, quotas, and FIBER_K8S_NODE_SELECTOR",
    ReasonKind.START: "name the image's Python with FIBER_K8S_PYTHON, or install one in it",
    ReasonKind.OOM: "see limits of the namespace: kubectl describe limitrange",
}
_POLICY = (
    "let pods with the label app.kubernetes.io/managed-by=fiber reach each other on all TCP ports: "
    "kubectl get networkpolicy"
)


def run_checks(
    backend: Backend, client: Client, config: K8sConfig, run_id: str, image: str | None
) -> Iterator[Check]:
    """Run pods, and tell what they found.

    Args:
        backend: runs them.
        client: the cluster.
        config: settings.
        run_id: what they belong to.
        image: that they run in; None where it is the program's own.
    """
    if image is None and client.connection.inside is None:
        yield Check(
            name="image",
            ok=False,
            detail="none is named, so nothing can be looked at from inside a pod",
            fix="name one with Python and fiber in it: FIBER_IMAGE=NAME fiber doctor k8s",
        )
        return
    try:
        yield from _look(backend, client, config, run_id, image)
    except BackendError as error:
        fix = "mend what the cluster says"
        yield Check(name=_POD, ok=False, detail=str(error), fix=fix)


def _look(
    backend: Backend, client: Client, config: K8sConfig, run_id: str, image: str | None
) -> Iterator[Check]:
    began = time.monotonic()

    def probe(*then: str) -> Probe:
        return Probe(backend, run_id, image, config.python, rights(), then)

    if client.connection.inside is not None:
        host = _own_address(config)
        with listening(host) as port, probe("dial", host, str(port)) as pod:
            found = pod.read("dialled")
            yield from _judge(client, pod, found, time.monotonic() - began)
            if "dialled" in found.told:
                yield _traffic("pods reach this program", found.told["dialled"])
        return
    with probe("listen") as pod:
        found = pod.read("port")
        yield from _judge(client, pod, found, time.monotonic() - began)
        if "port" not in found.told:
            return
        address = str(client.pod(pod.job.id)["status"]["podIP"])
        with probe("dial", address, str(found.told["port"])) as other:
            seen = other.read("dialled")
            why = seen.told.get("dialled", _how_it_ended(seen))
            yield _traffic("pods reach each other", why)


def _own_address(config: K8sConfig) -> str:
    chosen = choose(config, os.environ, interfaces())
    if chosen is None:
        msg = "this pod has no address that other pods reach; set FIBER_K8S_ADDRESS to one"
        raise BackendError(msg)
    return chosen.bind_url.partition("://")[2].rpartition(":")[0].strip("[]")


def _judge(client: Client, pod: Probe, found: Found, seconds: float) -> Iterator[Check]:
    if "python" not in found.told:
        fix = _fix(found) or f"see what it wrote, and kubectl get events | grep {pod.job.id}"
        reason = found.status.reason if found.status else None
        is_image = reason is not None and reason.kind is ReasonKind.IMAGE
        name = "image" if is_image else _POD
        yield Check(name=name, ok=False, detail=_how_it_ended(found), fix=fix)
        return
    body = _body(client, pod.job.id)
    yield Check(name="image", ok=True, detail=_image(body))
    yield Check(
        name=_POD, ok=True, detail=f"{pod.job.id} told its first words after {seconds:.1f} s"
    )
    told = found.told
    yield Check(
        name="python in the image", ok=True, detail=f"{told['python']}, {told['executable']}"
    )
    yield _versions(told["versions"], str(told["failure"]))
    if told.get("allowed") is None:
        yield Check(
            name="the cluster from inside a pod",
            ok=False,
            detail=str(told.get("account") or "nothing is told of it"),
            fix="let pods reach the cluster's API, and see automountServiceAccountToken",
        )
        return
    account = str((body.get("spec") or {}).get("serviceAccountName") or EVERYBODYS)
    allowed = dict(zip(rights(), told["allowed"], strict=True))
    yield from judge(allowed, f"{account} may", client.namespace, account)


def _body(client: Client, name: str) -> Mapping[str, Any]:
    try:
        return client.pod(name)
    except ApiError:
        # it was quick, and is gone; all that matters was told by itself
        return {}


def _image(body: Mapping[str, Any]) -> str:
    statuses: Any = (body.get("status") or {}).get("containerStatuses") or ({},)
    image, digest = str(statuses[0].get("image") or ""), str(statuses[0].get("imageID") or "")
    return f"{image}, pulled as {digest}" if digest else image or "pulled"


def _versions(found: dict[str, str], failure: str) -> Check:
    here = {name: metadata.version(name) for name in ("fiber-core", "fiber-k8s")}
    wanted = " ".join(f"{name}=={version}" for name, version in here.items())
    fix = f"add to the image's Dockerfile: RUN python3 -m pip install {wanted}"
    name = "fiber in the image"
    if failure:
        return Check(name=name, ok=False, detail=failure, fix=fix)
    told = ", ".join(f"{each} {found.get(each) or 'is not installed'}" for each in here)
    same = all(found.get(each) == version for each, version in here.items())
    if same:
        return Check(name=name, ok=True, detail=f"{told}, as here")
    mine = ", ".join(f"{each} {version}" for each, version in here.items())
    # a process that starts none needs no backend
    ok = found.get("fiber-core") == here["fiber-core"]
    return Check(name=name, ok=ok, detail=f"{told}; here {mine}", fix=fix)


def _traffic(name: str, why: str) -> Check:
    return Check(name=name, ok=not why, detail=why or "by TCP, on any port", fix=_POLICY)


def _fix(found: Found) -> str | None:
    if found.status is None or found.status.reason is None:
        return None
    # how a shell tells that there is no such program
    missing = found.status.exit_code in {126, 127} and found.status.reason.kind is ReasonKind.EXIT
    return _FIXES.get(ReasonKind.START if missing else found.status.reason.kind)


def _how_it_ended(found: Found) -> str:
    status = found.status
    how = "it ended and left no word"
    if status is not None:
        how = status.message or str(status.reason or status.state.value)
    return f"{how}: {' | '.join(found.lines)}" if found.lines else how
