"""Submission of jobs: creates their pods and Secrets, those of a burst by threads."""

from __future__ import annotations

import functools
import os
import secrets
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import attrs

from fiber.abc import ResourceProvider
from fiber.backend_parts.address import source_address
from fiber.backend_parts.feed import Feed, ended, failed
from fiber.backend_parts.threads import ThreadPool
from fiber.exceptions import BackendError, SubmitError, UnknownJobError
from fiber.model import Job, JobSpec, JobState, JobStatus, ReasonKind
from fiber_k8s.address import is_outside
from fiber_k8s.client import ApiError, Client, missing_account
from fiber_k8s.config import K8sConfig
from fiber_k8s.flow_control import RateLimiter
from fiber_k8s.manifest import PodContext, manifest, read_template
from fiber_k8s.pod_group import PodGroups
from fiber_k8s.rbac import ACCOUNT
from fiber_k8s.run_objects import RunObjects, owner_reference, secret_body
from fiber_k8s.status import job_of

#: pods that are created before the rate limit holds
_BURST = 100
#: ports for streams: below the ephemeral ports of systems
_FIRST_STREAM_PORT, _STREAM_PORTS = 20_000, 10_000
#: most private bytes that are sealed into an environment variable; Linux takes 128 KiB a variable
_SEALED = 64 << 10
#: fields of a pod's spec with its service account; the second is the deprecated name
_ACCOUNTS = frozenset({"serviceAccountName", "serviceAccount"})
_LABELS = "FIBER_K8S_LABELS"
_KILLED = ended(-signal.SIGKILL, "killed before its pod was created")

#: documentation addresses (RFC 5737, 3849), to find the own address; a pod may have one family only
_ANYWHERE = ("192.0.2.1", "2001:db8::1")
#: threads for calls of the cluster; fewer than the connections of the client's pool
_THREADS = 16


@attrs.define(eq=False)
class _PodRequest:
    """A job that was submitted here, and the pod to create for it; changed with the lock held."""

    spec: JobSpec
    body: dict[str, Any] = attrs.field(repr=False)
    job: Job
    #: True where the user named no service account, so that Fiber chooses it
    is_account_ours: bool
    #: port at which the supervisor in the pod accepts streams; None where it dials its parent
    stream_port: int | None
    #: True until the pod is created or refused
    is_creating: bool = True
    #: True where the job ended before
    is_cancelled: bool = False


class JobSubmitter:
    """Submits the jobs of one backend, and remembers them; thread-safe.

    Args:
        backend: name of the backend.
        client: the cluster.
        config: settings.
        feed: receives the statuses of jobs.
        providers: resource providers of devices, by kind.
        user: name of the user, for labels.
    """

    def __init__(
        self,
        backend: str,
        client: Client,
        config: K8sConfig,
        feed: Feed,
        providers: Mapping[str, ResourceProvider],
        user: str,
    ) -> None:
        self._backend = backend
        self._client = client
        self._config = config
        self._feed = feed
        self._classes = {kind: one.device_class for kind, one in providers.items()}
        self._user = user
        self._groups = PodGroups(client, config)
        self._rate_limiter = RateLimiter(_BURST, config.create_rate)
        #: threads for slow calls of the cluster, which others use too
        self.threads = ThreadPool("k8s", "the cluster", _THREADS)
        self._lock = threading.Lock()
        self._is_parent_known = False
        self._parent: dict[str, Any] | None = None
        self._template: dict[str, Any] | None = None
        self._last_submit = float("-inf")
        self._requests: dict[str, _PodRequest] = {}

    # -- submitting

    def submit(self, spec: JobSpec, run: RunObjects) -> Job:
        """Create a job's pod.

        The first process of a burst waits for the cluster's answer, so that a refusal is raised to
        the caller. The others of the burst are created by threads, and a refusal is their final
        status.

        Args:
            spec: the job.
            run: the Lease and the Secret of its run.

        Raises:
            SubmitError: it is refused.
        """
        request = self._request(spec, run)
        now = time.monotonic()
        with self._lock:
            is_in_burst = now - self._last_submit < self._client.timing.burst
            self._requests[request.job.id] = request
        # before the watch reports the pod, so that nothing waits for an unknown job
        self._feed.publish(request.job, JobStatus(state=JobState.PENDING))
        if is_in_burst and spec.entry is not None:
            with self._lock:
                self._last_submit = now
            self.threads.submit(lambda: self._create_later(request))
            return request.job
        try:
            self._create(request)
        except BackendError:
            with self._lock:
                del self._requests[request.job.id]
                self._last_submit = float("-inf")
            raise
        with self._lock:
            self._last_submit = time.monotonic()
        return request.job

    def parent(self) -> dict[str, Any] | None:
        """Return the program's own pod as the API has it; None outside of a cluster. Cached."""
        with self._lock:
            if not self._is_parent_known:
                self._parent = _find_parent(self._client)
                if self._config.pod_template is not None:
                    self._template = read_template(self._config.pod_template)
                self._is_parent_known = True
            return self._parent

    # -- jobs that were submitted

    def is_own(self, job_id: str) -> bool:
        """True for a job that was submitted here."""
        return job_id in self._requests

    def spec(self, job_id: str) -> JobSpec | None:
        """Return the spec of a job that was submitted here; None for others."""
        request = self._requests.get(job_id)
        return None if request is None else request.spec

    def stream_port(self, job_id: str) -> int:
        """Return the port at which a job's supervisor accepts streams.

        Raises:
            UnknownJobError: the job was not submitted here, or dials its parent directly.
        """
        request = self._requests.get(job_id)
        if request is None or request.stream_port is None:
            msg = f"job {job_id} waits for no streams of this program"
            raise UnknownJobError(msg)
        return request.stream_port

    def is_being_created(self, job_id: str) -> bool:
        """True for a job whose pod is not created yet."""
        request = self._requests.get(job_id)
        return request is not None and request.is_creating

    def cancel_creation(self, job_id: str) -> bool:
        """Cancel the creation of a job's pod; False where it is created already."""
        with self._lock:
            request = self._requests.get(job_id)
            if request is None or not request.is_creating:
                return False
            request.is_cancelled = True
            return True

    def forget(self, job_id: str) -> None:
        """Forget a job whose pod is gone, and with the last one of its gang its pod group."""
        with self._lock:
            request = self._requests.pop(job_id, None)
        spec = None if request is None else request.spec
        if spec is not None and spec.gang is not None and self._groups.member_ended(spec):
            self.threads.submit(functools.partial(self._groups.drop, spec.run_id, spec.gang.name))

    def attached(self) -> list[str]:
        """Return the jobs that were submitted here and are not detached."""
        with self._lock:
            return [job for job, request in self._requests.items() if not request.spec.detached]

    def close(self) -> None:
        """Cancel all creations, and wait for the calls that have begun. Idempotent."""
        with self._lock:
            for request in self._requests.values():
                request.is_cancelled = request.is_cancelled or request.is_creating
        self.threads.close()

    # -- within

    def _request(self, spec: JobSpec, run: RunObjects) -> _PodRequest:
        parent = self.parent()
        for kind, count in spec.resources.devices.items():
            if count and kind not in self._classes:
                msg = f"no resource provider for {kind!r} is installed; there are {', '.join(self._classes) or 'none'}"  # fmt: skip
                raise SubmitError(msg)
        env: dict[str, str] = {}
        stream_port = _choose_stream_port(spec, self._config)
        if stream_port is not None:
            env["FIBER_REACH"] = f"streams:127.0.0.1:{stream_port}"
        if self._starts_jobs(spec):
            env |= _labels_for_workers(spec, self._template)
        # a detached job must not be deleted with its submitter's Lease
        owner = None if spec.detached else run.owner(_owning_pod(parent, self._client))
        sealed = None
        own_secret = _needs_a_secret(spec)
        if spec.private is not None and not own_secret:
            sealed = run.seal(spec.private, owner)
        own_pod = self._client.connection.own_pod
        context = PodContext(
            parent=parent,
            container=own_pod.container if own_pod is not None else None,
            owner=owner,
            secret=None if sealed is None else run.name,
            sealed=sealed,
            own_secret=own_secret,
            device_classes=self._classes,
            template=self._template,
            gang=self._groups.get(spec, owner),
            user=self._user,
            env=env,
        )
        body = manifest(spec, self._config, context)
        if not body["spec"]["containers"][0].get("image"):
            msg = (
                "no image is named for jobs to run in; set FIBER_IMAGE=NAME (or --image) to one "
                "with Python and fiber that the cluster's nodes can pull"
            )
            raise SubmitError(msg)
        is_account_ours = self._starts_jobs(spec) and _ACCOUNTS.isdisjoint(body["spec"])
        if is_account_ours:
            body["spec"]["serviceAccountName"] = ACCOUNT
        job = job_of(self._backend, body)
        job = attrs.evolve(job, data={"namespace": self._client.namespace})
        return _PodRequest(spec, body, job, is_account_ours, stream_port)

    def _starts_jobs(self, spec: JobSpec) -> bool:
        """True for a program that uses this backend itself, as those of ``fiber run`` do."""
        return spec.entry is None and spec.env.get("FIBER_BACKEND") == self._backend

    def _is_cancelled(self, request: _PodRequest) -> bool:
        with self._lock:
            return request.is_cancelled

    def _create(self, request: _PodRequest) -> None:
        self._rate_limiter.acquire()
        job = request.job
        try:
            if self._is_cancelled(request):
                self._feed.publish(job, _KILLED)
                return
            try:
                pod = self._create_pod(request)
            except BackendError:
                if not self._is_cancelled(request):
                    raise
                # it was cancelled while the cluster was not reachable
                self._feed.publish(job, _KILLED)
                return
            if _needs_a_secret(request.spec):
                self._create_own_secret(request, pod)
        finally:
            with self._lock:
                request.is_creating = False
                # the cluster has it; a pool has many
                request.body.clear()
        if self._is_cancelled(request):
            self._client.delete("pods", job.id, grace=1)

    def _create_pod(self, request: _PodRequest) -> dict[str, Any]:
        """Create a pod; a service account that Fiber chose is left out where it does not exist.

        The right to create pods does not include reading accounts, so the refusal itself shows it.
        """
        try:
            return self._client.create_pod(request.body, lambda: not request.is_cancelled)
        except SubmitError as error:
            if not request.is_account_ours or missing_account(str(error)) != ACCOUNT:
                raise
        # a program that starts no jobs needs no rights; one that does reports those it lacks
        del request.body["spec"]["serviceAccountName"]
        return self._client.create_pod(request.body, lambda: not request.is_cancelled)

    def _create_own_secret(self, request: _PodRequest, pod: Mapping[str, Any]) -> None:
        """Create a pod's own Secret, which the pod owns; the kubelet waits for it."""
        spec = request.spec
        assert spec.private is not None
        body = secret_body(
            request.job.id, spec.run_id, spec.private, owner_reference(pod), "private"
        )
        try:
            self._client.create("secrets", body, f"create the Secret of {request.job.id}")
        except BackendError:
            self._client.delete("pods", request.job.id, grace=1)
            raise

    def _create_later(self, request: _PodRequest) -> None:
        try:
            self._create(request)
        except BackendError as error:
            self._feed.publish(request.job, failed(ReasonKind.UNSCHEDULABLE, str(error), 127))


def _labels_for_workers(spec: JobSpec, template: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the setting by which a program's workers get its pod template's labels.

    They inherit other fields from the program's pod, but no labels, which may be a controller's.
    """
    labels = ((template or {}).get("metadata") or {}).get("labels") or {}
    pairs = [f"{key}={value}" for key, value in labels.items()]
    if not pairs:
        return {}
    # the later ones take precedence, as the setting does over the template
    return {_LABELS: ",".join([*pairs, *filter(None, [spec.env.get(_LABELS)])])}


def _needs_a_secret(spec: JobSpec) -> bool:
    """True where private bytes are not sealed: too many, or for a program of users."""
    if spec.private is None:
        return False
    return spec.entry is None or len(spec.private) > _SEALED


def _choose_stream_port(spec: JobSpec, config: K8sConfig) -> int | None:
    """Choose a port for streams, where the job cannot dial its parent; else None.

    A random one: a pod in its node's network (hostNetwork) shares the ports with others.
    """
    if spec.ident is None or not is_outside(config, os.environ):
        return None
    return _FIRST_STREAM_PORT + secrets.randbelow(_STREAM_PORTS)


def _owning_pod(parent: Mapping[str, Any] | None, client: Client) -> Mapping[str, Any] | None:
    """Return the own pod where it may own objects: owners have to be in the same namespace."""
    if parent is None or parent["metadata"].get("namespace") != client.namespace:
        return None
    return parent


def _find_parent(client: Client) -> dict[str, Any] | None:
    """Return the pod of this process from the API; None outside of a pod.

    Raises:
        SubmitError: it runs in a pod that it may not read, or that is not found; its children
            inherit from it.
    """
    own_pod = client.connection.own_pod
    if own_pod is None:
        return None
    try:
        return client.own_pod()
    except ApiError as error:
        if error.status != 404:
            raise SubmitError(str(error)) from error
        missing = str(error)
    # a host name that was set is not the pod's name
    address = next(filter(None, (source_address(host, 9) for host in _ANYWHERE)), None)
    query = {"fieldSelector": f"status.podIP={address}"}
    path = f"/api/v1/namespaces/{own_pod.namespace}/pods"
    answer = client.call("GET", path, "find the program's own pod", query=query)
    found: list[dict[str, Any]] = answer.get("items") or []
    if len(found) == 1:
        return {"apiVersion": "v1", "kind": "Pod", **found[0]}
    msg = (
        f"the program's own pod is not found: {missing}; pods with address {address}: {len(found)}"
    )
    raise SubmitError(msg)
