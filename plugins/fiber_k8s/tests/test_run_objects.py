"""A run's Lease is renewed, and created again where another client deletes it."""

import base64
import contextlib
import threading

import pytest

from fiber.exceptions import BackendUnavailableError, SubmitError
from fiber.model import Timing
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.run_objects import LEASES, RunObjects
from fiber_k8s.timing import K8sTiming


class Server:
    """Answers a run's calls of the cluster, and records them."""

    namespace = "default"
    core_timing = Timing()
    timing = K8sTiming(renewal_retry=0.05)

    def __init__(self):
        self.asked = []
        self.made = 0
        #: what becomes of a call, by its method and kind
        self.refusals = {}
        self.pod_list = []
        self._changed = threading.Condition()

    def now(self):
        return 0.0

    def path(self, kind, name="", sub="", *, group=""):
        return f"{kind}/{name}"

    def pods(self, selector):
        return self.pod_list

    def call(self, method, path, what, **options):
        self._note(method, path, options.get("body"))
        return {}

    def create(self, kind, body, what, **options):
        self._note("POST", kind, body)
        if kind == "leases":
            self.refusals.pop(("PATCH", kind), None)
        self.made += 1
        return {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.made}"}}

    def delete(self, kind, name, **options):
        self._note("DELETE", f"{kind}/{name}", options)
        return True

    def _note(self, method, path, body):
        with self._changed:
            self.asked.append((method, path, body))
            self._changed.notify_all()
        refusal = self.refusals.get((method, path.partition("/")[0]))
        if refusal is not None:
            raise refusal

    def of(self, method, kind):
        with self._changed:
            return [
                body for done, path, body in self.asked
                if done == method and path.partition("/")[0] == kind
            ]  # fmt: skip

    def until(self, method, kind, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(method, kind)) >= count, 30)


def refused(status):
    return ApiError("no", status)


def owned_pod(name, *owners, **metadata):
    owners = [{"kind": "Lease", "uid": uid} for uid in owners]
    return {"metadata": {"name": name, "uid": name, "ownerReferences": owners, **metadata}}


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def run(server):
    run = RunObjects(server, "0badcafe", 40.0, "me")
    yield run
    server.refusals.clear()
    run.close()


class TestADeletedLease:
    @pytest.fixture(autouse=True)
    def gone(self, server, run):
        run.owner(None)
        run.seal(b"x", None)
        server.refusals["PATCH", "leases"] = refused(404)

    def test_it_is_made_again_though_nothing_is_created(self, server, run, caplog):
        run.recheck()
        server.until("POST", "secrets", 2)
        # a Lease and a Secret before, and after
        assert run.owner(None)["uid"] == "uid-3"
        assert server.of("DELETE", "secrets") != []
        assert "was deleted by somebody else; it was made again" in caplog.text

    def test_a_job_waits_for_one_that_is_being_made_again(self, server, run):
        asked, answer, call = threading.Event(), threading.Event(), server.call

        def slow(method, *words, **options):
            asked.set()
            assert answer.wait(30)
            return call(method, *words, **options)

        server.call = slow
        run.recheck()
        assert asked.wait(30)
        # whoever renews it has not been told yet that it is gone
        owners = []
        starting = threading.Thread(target=lambda: owners.append(run.owner(None)["uid"]))
        starting.start()
        starting.join(0.2)
        assert owners == []
        answer.set()
        starting.join()
        assert owners == ["uid-3"]
        assert len(server.of("POST", "leases")) == 2

    def test_existing_pods_belong_to_the_new_lease(self, server, run):
        server.pod_list = [
            owned_pod("a", "another", "uid-1"),
            owned_pod("b", "uid-1", deletionTimestamp="2026-11-20T10:00:00Z"),
            owned_pod("c", "another"),
            owned_pod("d"),
        ]
        run.recheck()
        new = run.owner(None)
        server.until("PATCH", "pods", 1)
        owners = [{"kind": "Lease", "uid": "another"}, new]
        assert server.of("PATCH", "pods") == [{"metadata": {"uid": "a", "ownerReferences": owners}}]

    def test_without_the_right_to_patch_pods_it_is_logged(self, server, run, caplog):
        server.pod_list = [owned_pod("a", "uid-1")]
        server.refusals["PATCH", "pods"] = refused(403)
        run.recheck()
        assert run.owner(None)["uid"] == "uid-3"
        assert "cannot be handed over to the new one: no" in caplog.text

    def test_where_it_cannot_be_created_again_submission_fails_with_the_reason(self, server, run):
        server.refusals["POST", "leases"] = SubmitError("forbidden")
        run.recheck()
        with pytest.raises(
            SubmitError,
            match="deleted by somebody else, and the cluster ends the run's jobs; it cann",
        ):
            run.owner(None)
        server.refusals.clear()
        assert run.owner(None)["uid"] == "uid-1"

    def test_one_that_is_deleted_at_the_end_is_not_made_again(self, server, run):
        run.close()
        run.recheck()
        assert len(server.of("POST", "leases")) == 1


def test_where_the_cluster_is_away_a_job_waits_for_it(server, run):
    run.owner(None)
    answers = iter([BackendUnavailableError("away"), BackendUnavailableError("away")])

    def call(method, path, what, again=None, **options):
        for error in answers:
            assert again(error)
        return {}

    server.call = call
    run.recheck()
    assert run.owner(None)["uid"] == "uid-1"


def test_a_renewal_that_failed_is_tried_again_soon(server, run):
    run.owner(None)
    server.refusals["PATCH", "leases"] = refused(503)
    run.recheck()
    # the next one in its turn would be in ten seconds
    server.until("PATCH", "leases", 3)


def test_jobs_that_are_started_after_their_lease_was_deleted_run_and_nothing_is_left_at_the_end(
    site, backend
):
    first = site.start(backend, private=b"x")
    backend.recorder.running(first)
    before = site.cluster.get("secrets", f"fiber-{backend.run}")["data"]["key"]
    # as an administrator does
    config = K8sConfig(kubeconfig=str(site.cluster.kubeconfig))
    with contextlib.closing(Client(config)) as client:
        assert client.delete("leases", f"fiber-{backend.run}", group=LEASES)
    backend.recorder.end(first)

    # as a pool does
    others = [site.start(backend, private=b"x") for _ in range(4)]

    for job in others:
        backend.recorder.running(job)
    lease = site.cluster.get("leases", f"fiber-{backend.run}")
    for job in others:
        (owner,) = site.cluster.get("pods", job.id)["metadata"]["ownerReferences"]
        assert owner["uid"] == lease["metadata"]["uid"]
    secret = site.cluster.get("secrets", f"fiber-{backend.run}")
    assert secret["metadata"]["ownerReferences"] == [owner]
    assert secret["immutable"] is True
    # those that were sealed before can be opened still
    assert base64.b64decode(secret["data"]["key"]) == base64.b64decode(before)
    backend.close()
    site.cluster.wait_until_gone(backend.run)
