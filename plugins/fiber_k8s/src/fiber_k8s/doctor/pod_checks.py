"""Checks from inside a pod that is created as those of jobs are: image, account, network.

A :class:`Probe` is such a pod, which runs the program in ``probe``.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import attrs

from fiber._wire.interfaces import interfaces
from fiber.exceptions import BackendError, UnknownJobError
from fiber.model import Check, Job, JobSpec, JobStatus, ReasonKind
from fiber_k8s.address import choose
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.doctor.access_review import review_fields, rights_checks
from fiber_k8s.doctor.probe import ANSWER, LINE_PREFIX
from fiber_k8s.rbac import DEFAULT_ACCOUNT, Right, rights

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["Probe", "ProbeResult", "listening", "run_checks"]


#: lines of other output that are kept
_KEPT = 5


@attrs.frozen(kw_only=True)
class ProbeResult:
    """Facts that a probe reported, and the pod's status where it has ended."""

    #: by the probe's names for them
    facts: dict[str, Any] = attrs.field(factory=dict)
    #: other lines of its output
    lines: tuple[str, ...] = ()
    #: status of the pod; None where it runs, or is not known
    status: JobStatus | None = None


class Probe:
    """A pod that runs the probe; a context manager, which kills it at its end.

    Args:
        backend: runs it.
        run_id: its run.
        image: its image.
        python: the Python there.
        rights: reviewed for its account.
        then: the probe's last step: ``listen``, or ``dial``, a host and a port.
    """

    def __init__(
        self,
        backend: Backend,
        run_id: str,
        image: str | None,
        python: str,
        rights: Sequence[Right],
        then: Sequence[str],
    ) -> None:
        source = importlib.resources.files("fiber_k8s.doctor").joinpath("probe.py")
        reviews = json.dumps([review_fields(right) for right in rights])
        self._spec = JobSpec(
            run_id=run_id,
            name="doctor",
            argv=(python, "-c", source.read_text(encoding="utf-8"), reviews, *then),
            image=image,
            # gives it the service account of programs of `fiber run`
            env={"FIBER_BACKEND": backend.name},
        )
        self._backend = backend
        self._job: Job | None = None

    @property
    def job(self) -> Job:
        """The pod's job, once submitted."""
        assert self._job is not None
        return self._job

    def __enter__(self) -> Probe:
        self._job = self._backend.submit(self._spec)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(UnknownJobError):
            self._backend.kill(self.job)

    def read(self, until: str) -> ProbeResult:
        """Read the probe's output until it has reported a certain fact, or has ended."""
        facts: dict[str, Any] = {}
        lines: list[str] = []
        with contextlib.ExitStack() as stack:
            written = self._backend.logs(self.job, follow=True)
            if isinstance(written, Generator):
                stack.callback(written.close)
            for line in written:
                if not line.startswith(LINE_PREFIX):
                    lines.append(line)
                    continue
                facts.update(json.loads(line.removeprefix(LINE_PREFIX)))
                if until in facts:
                    return ProbeResult(facts=facts, lines=tuple(lines))
        return ProbeResult(facts=facts, lines=tuple(lines[-_KEPT:]), status=self._status())

    def _status(self) -> JobStatus | None:
        try:
            return self._backend.status([self.job])[0]
        except BackendError:
            return None


@contextlib.contextmanager
def listening(host: str) -> Iterator[int]:
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
                peer.sendall(ANSWER)


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

    def probe(*then: str) -> Probe:
        return Probe(backend, run_id, image, config.python, rights(), then)

    if client.connection.own_pod is not None:
        host = _own_address(config)
        with listening(host) as port, probe("dial", host, str(port)) as pod:
            found = pod.read("dialled")
            yield from _probe_checks(client, pod, found, time.monotonic() - began)
            if "dialled" in found.facts:
                yield _traffic("pods reach this program", found.facts["dialled"])
        return
    with probe("listen") as pod:
        found = pod.read("port")
        yield from _probe_checks(client, pod, found, time.monotonic() - began)
        if "port" not in found.facts:
            return
        address = str(client.pod(pod.job.id)["status"]["podIP"])
        with probe("dial", address, str(found.facts["port"])) as other:
            seen = other.read("dialled")
            why = seen.facts.get("dialled", _how_it_ended(seen))
            yield _traffic("pods reach each other", why)


def _own_address(config: K8sConfig) -> str:
    chosen = choose(config, os.environ, interfaces())
    if chosen is None:
        msg = "this pod has no address that other pods reach; set FIBER_K8S_ADDRESS to one"
        raise BackendError(msg)
    return chosen.bind_url.partition("://")[2].rpartition(":")[0].strip("[]")


def _probe_checks(
    client: Client, pod: Probe, found: ProbeResult, seconds: float
) -> Iterator[Check]:
    if "python" not in found.facts:
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
    yield from rights_checks(allowed, f"{account} may", client.namespace, account)


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


def _fix(found: ProbeResult) -> str | None:
    if found.status is None or found.status.reason is None:
        return None
    # exit codes of shells for a missing program
    missing = found.status.exit_code in {126, 127} and found.status.reason.kind is ReasonKind.EXIT
    return _FIXES.get(ReasonKind.START if missing else found.status.reason.kind)


def _how_it_ended(found: ProbeResult) -> str:
    status = found.status
    how = "it ended and left no word"
    if status is not None:
        how = status.message or str(status.reason or status.state.value)
    return f"{how}: {' | '.join(found.lines)}" if found.lines else how
