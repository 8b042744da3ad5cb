"""Checks of ``fiber doctor k8s``: the cluster from here, then from pods as those of jobs are.

Called by :meth:`fiber_k8s.backend.K8sBackend.check`, which yields its checks one after the other. Each
failing check says how to fix it. Later checks are left out where they could only fail for a reason that
was reported. The pods run the program in ``probe``, which imports the standard library alone, for their
image need not have Fiber; they belong to the backend's run, and are killed after their checks.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import inspect
import json
import os
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import attrs

from fiber.abc import ResourceProvider
from fiber.backend_parts.address import interfaces
from fiber.exceptions import BackendError, FiberError, UnknownJobError
from fiber.model import Check, Job, JobSpec, JobStatus, ReasonKind
from fiber_k8s import probe
from fiber_k8s.address import choose
from fiber_k8s.capacity import totals
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.rbac import DEFAULT_ACCOUNT, GANG_GROUPS, RULES, Right, Rule, gang_rules, rights

if TYPE_CHECKING:
    from fiber.abc import Backend


#: by which clocks may differ: certificates of a run are valid from five minutes before
_MAX_SKEW = dt.timedelta(minutes=4)


def run_checks(
    backend: Backend,
    client: Client,
    config: K8sConfig,
    providers: Mapping[str, ResourceProvider],
    run_id: str,
    image: str | None,
) -> Iterator[Check]:
    """Check a cluster, one thing after the other; nothing is left of it."""
    try:
        connection = client.connection
        version = client.call("GET", "/version", "tell its version").get("gitVersion")
    except FiberError as error:
        fix = "see whether `kubectl cluster-info` works; set KUBECONFIG or FIBER_K8S_CONTEXT"
        yield Check(name="cluster", ok=False, detail=str(error), fix=fix)
        return
    where = f"namespace {client.namespace}"
    detail = f"{version} at {connection.host}, by {connection.origin}, {where}"
    yield Check(name="cluster", ok=True, detail=detail)
    yield _clock(client)
    try:
        allowed = _allowed_rights(client, rights((*RULES, *gang_rules(config.gang))))
    except BackendError as error:
        fix = "see whether `kubectl auth can-i create pods` answers"
        yield Check(name="rights", ok=False, detail=str(error), fix=fix)
        return
    in_pod = connection.own_pod is not None
    account = None
    if in_pod:
        pod: Mapping[str, Any] = {}
        with contextlib.suppress(ApiError):
            pod = client.own_pod() or {}
        account = str((pod.get("spec") or {}).get("serviceAccountName") or DEFAULT_ACCOUNT)
    subject = "this pod may" if in_pod else "you may"
    yield from _rights_checks(allowed, subject, client.namespace, account, gang=config.gang)
    yield from _gangs(client, config.gang)
    yield from _claims(client)
    yield from _devices(client, providers)
    needed = [right for right, yes in allowed.items() if right.rule.needed and not yes]
    if needed:
        # what follows would fail for that reason
        return
    yield from _pod_checks(backend, client, config, run_id, image)


def _clock(client: Client) -> Check:
    apart = client.now() - time.time()
    ahead = "ahead of" if apart > 0 else "behind"
    return Check(
        name="clock",
        ok=dt.timedelta(seconds=abs(apart)) < _MAX_SKEW,
        detail=f"the cluster's is {abs(apart):.0f} s {ahead} ours" if apart else "as the cluster's",
        fix="set this host's clock, best by NTP: certificates of a run are not valid elsewhere",
    )


def _gangs(client: Client, gang: str) -> Iterator[Check]:
    """Yield whether the gang scheduler's objects exist; nothing without a gang scheduler."""
    kinds = GANG_GROUPS.get(gang)
    if kinds is None:
        return
    is_missing, detail = False, f"scheduled by {gang}, {kinds} is there"
    try:
        client.call("GET", f"/apis/{kinds}", f"tell whether {gang} is installed")
    except ApiError as error:
        is_missing, detail = error.status == 404, f"not known: {error}"
    if is_missing:
        detail = f"the cluster has no {kinds}: {gang} is not installed there"
    fix = f"have {gang} installed, or unset FIBER_K8S_GANG: members are then created together"
    yield Check(name="groups", ok=not is_missing, detail=detail, fix=fix)


def _claims(client: Client) -> Iterator[Check]:
    """Yield a check of the persistent volume claims, which ``-v`` may name."""
    path = client.path("persistentvolumeclaims")
    try:
        found = client.call("GET", path, "list claims").get("items") or ()
    except ApiError as error:
        yield Check(name="claims", ok=True, detail=f"not known: {error}")
        return
    phases = {
        one["metadata"]["name"]: str((one.get("status") or {}).get("phase") or "Pending").lower()
        for one in found
    }
    lost = [name for name, phase in phases.items() if phase == "lost"]
    detail = ", ".join(map(" ".join, phases.items())) or "none in this namespace"
    if "pending" in phases.values():
        detail += "; one that is pending may be bound by the first pod that uses it"
    fix = f"kubectl describe pvc {' '.join(lost)}"
    yield Check(name="claims", ok=not lost, detail=detail, fix=fix)


def _devices(client: Client, providers: Mapping[str, ResourceProvider]) -> Iterator[Check]:
    """Yield checks of the nodes' capacity, and of their devices by kind; never failing ones."""
    try:
        nodes = client.call("GET", "/api/v1/nodes", "list nodes").get("items") or ()
    except ApiError:
        detail = "not known: nodes may not be listed (fiber k8s rbac --nodes lets them be)"
        yield Check(name="nodes", ok=True, detail=detail)
        return
    sums = totals(nodes)
    room = (
        f"{sums.get('cpu', 0):g} CPUs, {int(sums.get('memory', 0)) >> 20} MB of memory allocatable"
    )
    yield Check(name="nodes", ok=bool(nodes), detail=f"{len(nodes)}: {room}", fix="add a node")
    for kind, provider in sorted(providers.items()):
        count = sums.get(provider.device_class)
        detail = (
            f"{count:g} {provider.device_class} allocatable"
            if count is not None
            else f"no node offers {provider.device_class}; where one has such devices, its device "
            "plugin is not installed"
        )
        yield Check(name=f"{kind} devices", ok=True, detail=detail)


def _allowed_rights(client: Client, asked: Sequence[Right]) -> dict[Right, bool]:
    """Return which rights the client's user has in its namespace, by SelfSubjectAccessReviews.

    Raises:
        BackendError: the cluster cannot be reached, or refuses.
    """
    found = {}
    for right in asked:
        body = probe.review(client.namespace, _review_fields(right))
        answer = client.call("POST", probe.REVIEWS, f"tell whether we may {right}", body=body)
        found[right] = bool((answer.get("status") or {}).get("allowed"))
    return found


def _review_fields(right: Right) -> tuple[str, str, str, str]:
    """Return a right as a review has it: verb, API group, resource, subresource."""
    resource, _, sub = right.rule.resource.partition("/")
    return right.verb, right.rule.group, resource, sub


def _rights_checks(
    allowed: Mapping[Right, bool],
    subject: str,
    namespace: str,
    account: str | None = None,
    *,
    gang: str = "none",
) -> Iterator[Check]:
    """Yield a check for each rule; ``account`` is the one to grant rights to, None for a user."""
    grant = f"fiber k8s rbac --namespace {namespace}"
    if gang != "none":
        grant += f" --gang {gang}"
    then = ""
    if account is None:
        grant += " --user YOU"
    elif account == DEFAULT_ACCOUNT:
        # all other pods of the namespace would have them as well
        then = ", and fiber run --service-account fiber"
    else:
        grant += f" --service-account {account}"
    for rule in dict.fromkeys(right.rule for right in allowed):
        missing = [right.verb for right in rights([rule]) if not allowed.get(right)]
        yield Check(
            name=f"{subject}: {rule.resource}",
            ok=not (missing and rule.needed),
            detail=_detail(rule, missing),
            fix=f"{grant}{f' {rule.option}' if rule.option else ''} | kubectl apply -f -{then}",
        )


def _detail(rule: Rule, missing: Sequence[str]) -> str:
    if not missing:
        return ", ".join(rule.verbs)
    lacking = f"not allowed: {', '.join(missing)}"
    return f"{lacking} ({rule.why})" if rule.needed else f"{lacking}; only for {rule.why}"


# -- pods

#: lines of other output that are kept
_KEPT = 5


@attrs.frozen
class _Findings:
    """What a probe reported, and the pod's status where it has ended."""

    #: facts by the probe's names for them
    facts: dict[str, Any]
    #: other lines of its output
    lines: list[str]
    #: status of the pod; None where it runs, or is not known
    status: JobStatus | None = None


@contextlib.contextmanager
def _probe(
    backend: Backend, run_id: str, image: str | None, python: str, *then: str
) -> Iterator[Job]:
    """A pod that runs the probe, whose last step is ``then``; it is killed in the end."""
    reviews = json.dumps([_review_fields(right) for right in rights()])
    argv = (python, "-c", inspect.getsource(probe), reviews, *then)
    # gives it the service account of programs of `fiber run`
    env = {"FIBER_BACKEND": backend.name}
    job = backend.submit(JobSpec(run_id=run_id, name="doctor", argv=argv, image=image, env=env))
    try:
        yield job
    finally:
        with contextlib.suppress(UnknownJobError):
            backend.kill(job)


def _read(backend: Backend, job: Job, until: str) -> _Findings:
    """Read a probe's output until it has reported a certain fact, or has ended."""
    facts: dict[str, Any] = {}
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        written = backend.logs(job, follow=True)
        if isinstance(written, Generator):
            stack.callback(written.close)
        for line in written:
            if not line.startswith(probe.LINE_PREFIX):
                lines.append(line)
                continue
            facts.update(json.loads(line.removeprefix(probe.LINE_PREFIX)))
            if until in facts:
                return _Findings(facts, lines)
    status = None
    with contextlib.suppress(BackendError):
        (status,) = backend.status([job])
    return _Findings(facts, lines[-_KEPT:], status)


@contextlib.contextmanager
def _listening(host: str) -> Iterator[int]:
    """Within, this process answers pods that dial it; yields its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        server.setblocking(True)
        thread = threading.Thread(target=_answer, args=(server,), name="fiber-doctor", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            # closing alone leaves a thread in accept()
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            peer, _ = server.accept()
            with peer:
                peer.setblocking(True)
                peer.sendall(probe.ANSWER)


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


def _pod_checks(
    backend: Backend, client: Client, config: K8sConfig, run_id: str, image: str | None
) -> Iterator[Check]:
    """Run pods with the probe, and yield the checks of what they found."""
    if image is None and client.connection.own_pod is None:
        yield Check(
            name="image",
            ok=False,
            detail="none is named, so nothing can be looked at from inside a pod",
            fix="name one with Python and fiber in it: FIBER_IMAGE=NAME fiber doctor k8s",
        )
        return
    try:
        yield from _run_probes(backend, client, config, run_id, image)
    except BackendError as error:
        fix = "mend what the cluster says"
        yield Check(name=_POD, ok=False, detail=str(error), fix=fix)


def _run_probes(
    backend: Backend, client: Client, config: K8sConfig, run_id: str, image: str | None
) -> Iterator[Check]:
    began = time.monotonic()
    run = functools.partial(_probe, backend, run_id, image, config.python)
    if client.connection.own_pod is not None:
        host = _own_address(config)
        with _listening(host) as port, run("dial", host, str(port)) as pod:
            found = _read(backend, pod, "dialled")
            yield from _probe_checks(client, pod, found, time.monotonic() - began)
            if "dialled" in found.facts:
                yield _traffic("pods reach this program", found.facts["dialled"])
        return
    with run("listen") as pod:
        found = _read(backend, pod, "port")
        yield from _probe_checks(client, pod, found, time.monotonic() - began)
        if "port" not in found.facts:
            return
        address = str(client.pod(pod.id)["status"]["podIP"])
        with run("dial", address, str(found.facts["port"])) as other:
            seen = _read(backend, other, "dialled")
            why = seen.facts.get("dialled", _how_it_ended(seen))
            yield _traffic("pods reach each other", why)


def _own_address(config: K8sConfig) -> str:
    chosen = choose(config, os.environ, interfaces())
    return chosen.bind_url.partition("://")[2].rpartition(":")[0].strip("[]")


def _probe_checks(client: Client, pod: Job, found: _Findings, seconds: float) -> Iterator[Check]:
    if "python" not in found.facts:
        fix = _fix(found) or f"see what it wrote, and kubectl get events | grep {pod.id}"
        reason = found.status.reason if found.status else None
        is_image = reason is not None and reason.kind is ReasonKind.IMAGE
        name = "image" if is_image else _POD
        yield Check(name=name, ok=False, detail=_how_it_ended(found), fix=fix)
        return
    body = _body(client, pod.id)
    yield Check(name="image", ok=True, detail=_image(body))
    yield Check(name=_POD, ok=True, detail=f"{pod.id} told its first words after {seconds:.1f} s")
    facts = found.facts
    yield Check(
        name="python in the image", ok=True, detail=f"{facts['python']}, {facts['executable']}"
    )
    yield _versions(facts["versions"], str(facts["failure"]))
    if facts.get("allowed") is None:
        yield Check(
            name="the cluster from inside a pod",
            ok=False,
            detail=str(facts.get("account") or "nothing is told of it"),
            fix="let pods reach the cluster's API, and see automountServiceAccountToken",
        )
        return
    account = str((body.get("spec") or {}).get("serviceAccountName") or DEFAULT_ACCOUNT)
    allowed = dict(zip(rights(), facts["allowed"], strict=True))
    yield from _rights_checks(allowed, f"{account} may", client.namespace, account)


def _body(client: Client, name: str) -> Mapping[str, Any]:
    try:
        return client.pod(name)
    except ApiError:
        # it has ended and is deleted; the probe reported all that matters
        return {}


def _image(body: Mapping[str, Any]) -> str:
    statuses: Any = (body.get("status") or {}).get("containerStatuses") or ({},)
    image, digest = str(statuses[0].get("image") or ""), str(statuses[0].get("imageID") or "")
    return f"{image}, pulled as {digest}" if digest else image or "pulled"


def _versions(found: dict[str, str], failure: str) -> Check:
    own = {name: metadata.version(name) for name in ("fiber-core", "fiber-k8s")}
    required = " ".join(f"{name}=={version}" for name, version in own.items())
    fix = f"add to the image's Dockerfile: RUN python3 -m pip install {required}"
    name = "fiber in the image"
    if failure:
        return Check(name=name, ok=False, detail=failure, fix=fix)
    found_versions = ", ".join(f"{each} {found.get(each) or 'is not installed'}" for each in own)
    same = all(found.get(each) == version for each, version in own.items())
    if same:
        return Check(name=name, ok=True, detail=f"{found_versions}, as here")
    mine = ", ".join(f"{each} {version}" for each, version in own.items())
    # a process that starts no jobs needs no backend
    ok = found.get("fiber-core") == own["fiber-core"]
    return Check(name=name, ok=ok, detail=f"{found_versions}; here {mine}", fix=fix)


def _traffic(name: str, why: str) -> Check:
    return Check(name=name, ok=not why, detail=why or "by TCP, on any port", fix=_POLICY)


def _fix(found: _Findings) -> str | None:
    if found.status is None or found.status.reason is None:
        return None
    # exit codes of shells for a missing program
    missing = found.status.exit_code in {126, 127} and found.status.reason.kind is ReasonKind.EXIT
    return _FIXES.get(ReasonKind.START if missing else found.status.reason.kind)


def _how_it_ended(found: _Findings) -> str:
    status = found.status
    how = "it ended and left no word"
    if status is not None:
        how = status.message or str(status.reason or status.state.value)
    return f"{how}: {' | '.join(found.lines)}" if found.lines else how
