"""A run's Lease is renewed, and created again where another client deletes it."""

import base64
import concurrent.futures
import secrets
import threading

import pytest

from fiber._base import values
from fiber.exceptions import SubmitError
from fiber_k8s.run_objects import LEASES, RunObjects, owner_reference
from wire_world import until


@pytest.fixture
def run(client, cluster):
    client.timing = values.evolve(client.timing, renewal_retry=0.05)
    run_id = secrets.token_hex(4)
    run = RunObjects(client, run_id, 40.0, "me")
    run.owner(None)
    yield run
    run.close()
    cluster.wait_until_gone(run_id, ("leases", "secrets"))


def test_a_secret_of_its_name_that_somebody_else_made_is_replaced(run, cluster):
    cluster.create("secrets", {"metadata": {"name": run.name}, "data": {"key": "Zm9v"}})
    run.seal(b"private", run.owner(None))
    key = base64.b64decode(cluster.get("secrets", run.name)["data"]["key"])
    assert key == run._key


def leases_made(cluster, run):
    return [
        change
        for kind, change in cluster.history("leases")
        if (kind, change["metadata"]["name"]) == ("ADDED", run.name)
    ]


class TestADeletedLease:
    @pytest.fixture(autouse=True)
    def key(self, run, client, cluster):
        """The key of what was sealed before."""
        run.seal(b"x", run.owner(None))
        key = cluster.get("secrets", run.name)["data"]
        # as an administrator does
        assert client.delete("leases", run.name, group=LEASES)
        return key

    def test_it_is_made_again_though_nothing_is_created(self, run, cluster, key, caplog):
        run.recheck()

        def is_made(things):
            owners = [one["metadata"].get("ownerReferences") for one in things]
            return [run.owner(None)] in owners and things

        found = cluster.wait_for("secrets", is_made)
        (secret,) = (one for one in found if one["metadata"]["name"] == run.name)
        assert secret["immutable"] is True
        # those that were sealed before can be opened still
        assert secret["data"] == key
        assert run.owner(None)["uid"] == cluster.get("leases", run.name)["metadata"]["uid"]
        assert "was deleted by somebody else; it was made again" in caplog.text

    def test_a_job_waits_for_one_that_is_being_made_again(self, run, client, cluster):
        asked, answer, call = threading.Event(), threading.Event(), client.call

        def slow(method, *words, **options):
            asked.set()
            assert answer.wait(30)
            return call(method, *words, **options)

        client.call = slow
        run.recheck()
        assert asked.wait(30)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            # whoever renews it has not been told yet that it is gone
            owner = threads.submit(run.owner, None)
            with pytest.raises(concurrent.futures.TimeoutError):
                owner.result(0.2)
            answer.set()
            assert owner.result(30)["uid"] == cluster.get("leases", run.name)["metadata"]["uid"]
        assert len(leases_made(cluster, run)) == 2

    @pytest.mark.parametrize("may_patch", [True, False], ids=["allowed", "not allowed"])
    def test_existing_pods_belong_to_the_new_lease_unless_that_is_not_allowed(
        self, run, cluster, caplog, may_patch
    ):
        another = owner_reference(cluster.create("configmaps", {"metadata": {"name": run.name}}))
        (former,) = map(owner_reference, leases_made(cluster, run))
        labels, names = {"fiber/run": run.name.removeprefix("fiber-")}, (run.name, f"{run.name}-b")
        for name, owners in zip(names, ([another, former], [another]), strict=True):
            metadata = {"name": name, "labels": labels, "ownerReferences": owners}
            containers = [{"name": "main", "image": "app:1"}]
            cluster.create("pods", {"metadata": metadata, "spec": {"containers": containers}})

        def is_refused(call):
            return not may_patch and (call.verb, call.resource) == ("patch", "pods")

        with cluster.refuse(403, matching=is_refused):
            run.recheck()
            new = run.owner(None)
        found = [cluster.get("pods", name)["metadata"]["ownerReferences"] for name in names]
        assert found == [[another, new if may_patch else former], [another]]
        assert ("cannot be handed over to the new one: " in caplog.text) is not may_patch

    def test_where_it_cannot_be_created_again_submission_fails_with_the_reason(self, run, cluster):
        with cluster.refuse(403, matching=lambda call: call.verb == "create"):
            run.recheck()
            with pytest.raises(
                SubmitError,
                match="deleted by somebody else, and the cluster ends the run's jobs; it cann",
            ):
                run.owner(None)
        assert run.owner(None)["uid"] == cluster.get("leases", run.name)["metadata"]["uid"]

    def test_one_that_is_deleted_at_the_end_is_not_made_again(self, run, cluster):
        run.close()
        run.recheck()
        assert len(leases_made(cluster, run)) == 1


def test_where_the_cluster_is_away_a_job_waits_for_it(run, cluster):
    former = run.owner(None)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        with cluster.outage():
            run.recheck()
            owner = threads.submit(run.owner, None)
            with pytest.raises(concurrent.futures.TimeoutError):
                owner.result(0.2)
        assert owner.result(60) == former


def test_a_renewal_that_failed_is_tried_again_soon(run, cluster):
    refusal = cluster.refuse(503, times=3, matching=lambda call: call.verb == "patch")
    run.recheck()
    # the next one in its turn would be in ten seconds
    until(lambda: refusal.count == 3)


def test_jobs_that_are_started_after_their_lease_was_deleted_run_and_nothing_is_left_at_the_end(
    site, backend, client
):
    first = site.start_running(backend, private=b"x")
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
    backend.close()
    site.cluster.wait_until_gone(backend.run)
