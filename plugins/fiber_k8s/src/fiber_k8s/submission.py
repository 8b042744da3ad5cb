"""Creates the pods of jobs, one at first and the others of a burst side by side."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

import attrs

from fiber.abc import ResourceProvider
from fiber.backend_parts.feed import Feed
from fiber.backend_parts.threads import Hands
from fiber.exceptions import BackendError, SubmitError, UnknownJobError
from fiber.model import Job, JobSpec, JobState, JobStatus, Reason, ReasonKind
from fiber_k8s.address import is_outside
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.gangs import Gang
from fiber_k8s.manifest import Around, manifest
from fiber_k8s.pacing import Budget
from fiber_k8s.parent import find_parent
from fiber_k8s.rbac import ACCOUNT
from fiber_k8s.refusals import missing_account
from fiber_k8s.run import Belongings, owner_reference, secret_body
from fiber_k8s.status import job_of
from fiber_k8s.template import read_template

__all__ = ["Starter"]

#: pods that are created without a pause between them
_BURST = 100
#: seconds within which another process is of the same burst
_BURST_GAP = 0.5
#: ports for streams: below those that systems give to whoever asks for any
_FIRST_LANDING, _LANDINGS = 20_000, 10_000
#: most bytes that a variable carries in a seal; a system takes 128 KiB
_SEALED = 64 << 10
#: of a pod's spec, what names its service account; the second is the old name
_ACCOUNTS = frozenset({"serviceAccountName", "serviceAccount"})
_KILLED = JobStatus(
    state=JobState.FAILED,
    reason=Reason(ReasonKind.SIGNAL, 9),
    exit_code=-9,
    message="killed before its pod was created",
)

#: calls; more than there are connections would only wait for one
_AT_ONCE = 16


@attrs.frozen(eq=False)
class _Wanted:
    """A pod that is about to be created."""

    spec: JobSpec
    body: dict[str, Any] = attrs.field(repr=False)
    job: Job
    #: True where its service account is ours to choose: nobody named one
    is_account_ours: bool


class Starter:
    """Starts the jobs of one backend; thread-safe.

    Args:
        backend: name of the backend.
        client: the cluster.
        config: settings.
        feed: told what became of jobs.
        providers: of devices, by kind.
        user: whose jobs these are.
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
        self._budget = Budget(_BURST, config.create_rate)
        self._hands = Hands("k8s", "the cluster", _AT_ONCE)
        self._lock = threading.Lock()
        self._looked = False
        self._parent: dict[str, Any] | None = None
        self._template: dict[str, Any] | None = None
        self._last = float("-inf")
        self._mine: dict[str, JobSpec] = {}
        #: ports of pods at which their supervisors wait for streams
        self._landings: dict[str, int] = {}
        #: pods that are not created yet
        self._coming: set[str] = set()
        #: those of them that are not wanted any more
        self._doomed: set[str] = set()

    # -- submitting

    def submit(
        self,
        spec: JobSpec,
        belongings: Belongings,
        *,
        gang: Gang | None = None,
        env: Mapping[str, str] | None = None,
        at_once: bool = False,
    ) -> Job:
        """Create a job's pod.

        The first process of a burst waits for the cluster's word, so that a refusal is an error of
        whoever starts it. Those close behind it are created side by side, and a refusal is the end
        of theirs.

        Args:
            spec: the job.
            belongings: what its run has in the cluster.
            gang: what it starts with.
            env: variables besides those of the spec.
            at_once: wait for the cluster's word in any case.

        Raises:
            SubmitError: it is refused.
        """
        wanted = self._wanted(spec, belongings, gang, env or {})
        now = time.monotonic()
        with self._lock:
            follows = now - self._last < _BURST_GAP
            self._mine[wanted.job.id] = spec
            self._coming.add(wanted.job.id)
        # told before the cluster tells, so that nothing is awaited in vain
        self._feed.publish(wanted.job, JobStatus(state=JobState.PENDING))
        if follows and spec.entry is not None and not at_once:
            with self._lock:
                self._last = now
            self._hands.do(lambda: self._create_later(wanted))
            return wanted.job
        try:
            self._create(wanted)
        except BackendError:
            with self._lock:
                del self._mine[wanted.job.id]
                self._last = float("-inf")
            raise
        with self._lock:
            self._last = time.monotonic()
        return wanted.job

    def parent(self) -> dict[str, Any] | None:
        """The program's own pod; None outside a cluster."""
        with self._lock:
            if not self._looked:
                self._parent = find_parent(self._client)
                if self._config.pod_template is not None:
                    self._template = read_template(self._config.pod_template)
                self._looked = True
            return self._parent

    # -- afterwards

    def is_mine(self, job_id: str) -> bool:
        """True for jobs that were submitted here."""
        with self._lock:
            return job_id in self._mine

    def spec(self, job_id: str) -> JobSpec | None:
        """What was submitted, if it was here."""
        with self._lock:
            return self._mine.get(job_id)

    def landing(self, job_id: str) -> int:
        """The port at which a job's supervisor waits for streams.

        Raises:
            UnknownJobError: it was not submitted here, or dials by itself.
        """
        with self._lock:
            found = self._landings.get(job_id)
        if found is None:
            msg = f"job {job_id} waits for no streams of this program"
            raise UnknownJobError(msg)
        return found

    def is_coming(self, job_id: str) -> bool:
        """True for a job whose pod is not created yet."""
        with self._lock:
            return job_id in self._coming

    def doom(self, job_id: str) -> bool:
        """A job is to end; True where its pod is not created yet, and now will not be."""
        with self._lock:
            if job_id not in self._coming:
                return False
            self._doomed.add(job_id)
            return True

    def forget(self, job_id: str) -> JobSpec | None:
        """A job has ended, and its pod is gone; what was submitted, if it was here."""
        with self._lock:
            self._landings.pop(job_id, None)
            self._doomed.discard(job_id)
            return self._mine.pop(job_id, None)

    def attached(self) -> list[str]:
        """The jobs that were submitted here and end with their submitter."""
        with self._lock:
            return [job_id for job_id, spec in self._mine.items() if not spec.detached]

    def do(self, call: Any) -> None:
        """Run a slow call of the cluster soon, on another thread."""
        self._hands.do(call)

    def do_all(self, calls: list[Any]) -> None:
        """Run slow calls side by side and wait for them."""
        self._hands.do_all(calls)

    def close(self) -> None:
        """Create nothing any more, and wait for the calls that were begun. Idempotent."""
        with self._lock:
            self._doomed |= self._coming
        self._hands.close()

    # -- within

    def _wanted(
        self, spec: JobSpec, belongings: Belongings, gang: Gang | None, env: Mapping[str, str]
    ) -> _Wanted:
        parent = self.parent()
        for kind, count in spec.resources.devices.items():
            if count and kind not in self._classes:
                msg = f"no resource provider for {kind!r} is installed; there are {', '.join(self._classes) or 'none'}"  # fmt: skip
                raise SubmitError(msg)
        # what outlives its starter must not go with its starter's Lease
        landing = _landing(spec, self._config)
        if landing is not None:
            env = {**env, "FIBER_REACH": f"streams:127.0.0.1:{landing}"}
        owner = None if spec.detached else belongings.owner(_own(parent, self._client))
        sealed = None
        own_secret = _needs_a_secret(spec)
        if spec.private is not None and not own_secret:
            sealed = belongings.seal(spec.private, owner)
        inside = self._client.connection.inside
        around = Around(
            parent=parent,
            container=inside.container if inside is not None else None,
            owner=owner,
            secret=None if sealed is None else belongings.name,
            sealed=sealed,
            own_secret=own_secret,
            device_classes=self._classes,
            template=self._template,
            gang=gang,
            user=self._user,
            env=env,
        )
        body = manifest(spec, self._config, around)
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
        if landing is not None:
            with self._lock:
                self._landings[job.id] = landing
        job = attrs.evolve(job, data={"namespace": self._client.namespace})
        return _Wanted(spec, body, job, is_account_ours)

    def _starts_jobs(self, spec: JobSpec) -> bool:
        """True for a program that is to use this backend, as those of ``fiber run`` are."""
        return spec.entry is None and spec.env.get("FIBER_BACKEND") == self._backend

    def _create(self, wanted: _Wanted) -> None:
        self._budget.spend()
        job = wanted.job
        try:
            if self._is_doomed(job.id):
                self._feed.publish(job, _KILLED)
                return
            try:
                pod = self._create_pod(wanted)
            except BackendError:
                if not self._is_doomed(job.id):
                    raise
                # it was given up while the cluster was away
                self._feed.publish(job, _KILLED)
                return
            if _needs_a_secret(wanted.spec):
                self._hand_over(wanted, pod)
        finally:
            with self._lock:
                self._coming.discard(job.id)
                doomed = job.id in self._doomed
        if doomed:
            self._client.delete("pods", job.id, grace=1)

    def _create_pod(self, wanted: _Wanted) -> dict[str, Any]:
        """Create a pod, with an account that nobody named only where the namespace has it.

        Who may create pods need not be allowed to look for accounts, so the creation itself tells.
        """

        def is_wanted() -> bool:
            return not self._is_doomed(wanted.job.id)

        try:
            return self._client.create_pod(wanted.body, is_wanted)
        except SubmitError as error:
            if not wanted.is_account_ours or missing_account(str(error)) != ACCOUNT:
                raise
        # what starts no jobs needs no rights, and what does says which it lacks
        del wanted.body["spec"]["serviceAccountName"]
        return self._client.create_pod(wanted.body, is_wanted)

    def _hand_over(self, wanted: _Wanted, pod: Mapping[str, Any]) -> None:
        """Give a pod a Secret of its own, which goes with it; its node waits for that."""
        spec = wanted.spec
        assert spec.private is not None
        body = secret_body(
            wanted.job.id, spec.run_id, spec.private, owner_reference(pod), "private"
        )
        try:
            self._client.create("secrets", body, f"create the Secret of {wanted.job.id}")
        except BackendError:
            self._client.delete("pods", wanted.job.id, grace=1)
            raise

    def _create_later(self, wanted: _Wanted) -> None:
        try:
            self._create(wanted)
        except BackendError as error:
            refused = JobStatus(
                state=JobState.FAILED,
                reason=Reason(ReasonKind.UNSCHEDULABLE),
                exit_code=127,
                message=str(error),
            )
            self._feed.publish(wanted.job, refused)

    def _is_doomed(self, job_id: str) -> bool:
        with self._lock:
            return job_id in self._doomed


def _needs_a_secret(spec: JobSpec) -> bool:
    """True where what is private cannot be sealed: other programs know no seals."""
    if spec.private is None:
        return False
    return spec.entry is None or len(spec.private) > _SEALED


def _landing(spec: JobSpec, config: K8sConfig) -> int | None:
    """A port for streams, where the job can reach its parent in no other way.

    A pod has ports of its own, unless it is in its node's network.
    """
    if spec.ident is None or not is_outside(config, os.environ):
        return None
    return _FIRST_LANDING + secrets.randbelow(_LANDINGS)


def _own(parent: Mapping[str, Any] | None, client: Client) -> Mapping[str, Any] | None:
    """The pod that may own things in our namespace: one of another namespace may not."""
    if parent is None or parent["metadata"].get("namespace") != client.namespace:
        return None
    return parent
