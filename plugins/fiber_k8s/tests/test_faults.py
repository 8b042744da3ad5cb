"""Outages, expired versions, refusals and load of the API: no job is lost, no event missed."""

import collections
import concurrent.futures
import threading
import time

import pytest
import urllib3

from cluster import Act
from fiber.exceptions import BackendUnavailableError, SubmitError
from fiber.model import BackendContext, JobState, Reason, ReasonKind, Timing
from fiber_k8s.backend import K8sBackend
from fiber_k8s.config import K8sConfig
from fiber_k8s.connection import Connection
from k8s_site import StatusRecorder, set_durations
from k8s_world import process
from wire_world import until

RUNNING = JobState.RUNNING


class TestStream:
    @pytest.mark.parametrize("how", ["cut_watches", "end_watches", "expire"])
    def test_events_after_a_break_are_reported_once(self, site, backend, how):
        jobs = [site.start(backend) for _ in range(2)]
        for job in jobs:
            backend.recorder.running(job)
        getattr(site.cluster, how)()
        if how == "expire":
            site.cluster.cut_watches()
        site.cluster.end(jobs[0].id, code=5)
        assert backend.recorder.end(jobs[0]).exit_code == 5
        new = site.start(backend)
        backend.recorder.running(new)
        ends = [one for one in backend.recorder.of(jobs[0]) if one.state.is_terminal]
        assert len(ends) == 1
        assert backend.status([jobs[1]])[0].state is RUNNING

    def test_events_while_the_api_is_away_are_reported_afterwards(self, site, backend):
        stays, ends, goes = (site.start(backend) for _ in range(3))
        for job in (stays, ends, goes):
            backend.recorder.running(job)
        with site.cluster.outage():
            site.cluster.end(ends.id, code=4)
            site.cluster.delete_pod(goes.id, grace=0)
        assert backend.recorder.end(ends).exit_code == 4
        assert backend.recorder.end(goes).state is JobState.FAILED
        assert not any(one.state.is_terminal for one in backend.recorder.of(stays))
        assert backend.status([stays])[0].state is RUNNING

    def test_streams_that_end_at_once_are_not_asked_for_without_a_pause(self, site, monkeypatch):
        pauses = threading.Semaphore(0)

        def backoff(*_):
            while True:
                pauses.release()
                yield 0.01

        monkeypatch.setattr("fiber_k8s.watch.backoff", backoff)
        backend = site.open()
        job = site.start(backend)
        backend.recorder.running(job)
        with site.cluster.hasty_watches():
            for _ in range(4):
                assert pauses.acquire(timeout=30)
        site.cluster.end(job.id, code=0)
        assert backend.recorder.end(job).exit_code == 0

    def test_after_forgotten_history_the_list_comes_without_a_pause(self, site, monkeypatch):
        backend, another = site.open(), site.open()
        job = site.start(backend)
        backend.recorder.running(job)
        # a stream that hears of its own pods alone knows an old version of all
        another.recorder.running(site.start(another))
        # the regular end of a stream is followed by a pause; whatever is paused for after that stays
        monkeypatch.setattr("fiber_k8s.watch.backoff", lambda *_: iter([0.01, 3600.0]))
        site.cluster.expire()
        site.cluster.forget_requests()
        site.cluster.end_watches()
        site.cluster.end(job.id, code=5)
        assert backend.recorder.end(job).exit_code == 5
        assert "list" in {one.verb for one in site.cluster.requests}

    def test_an_end_is_reported_within_two_seconds_of_the_clusters_event(self, site, backend, record_property):  # fmt: skip
        took = []
        for _ in range(5):
            job = site.start(backend)
            backend.recorder.running(job)
            since = time.monotonic()
            site.cluster.end(job.id, code=1)
            backend.recorder.end(job)
            took.append(time.monotonic() - since)
        record_property("seconds until an end is told, median", sorted(took)[2])
        assert sorted(took)[2] < 2.0

    def test_pods_are_asked_for_by_one_stream_whatever_their_number(self, site, backend):
        site.cluster.forget_requests()
        for job in [site.start(backend) for _ in range(10)]:
            backend.recorder.running(job)
        verbs = collections.Counter((one.verb, one.resource) for one in site.cluster.requests)
        assert verbs["create", "pods"] == 10
        assert verbs["watch", "pods"] <= 1
        assert verbs["get", "pods"] == 0
        assert verbs["list", "pods"] <= 1


BEGINNING = """
    import sys
    import fiber

    if __name__ == "__main__":
        begin = {
            "process": lambda: fiber.Process(target=print).start(),
            "pool": lambda: fiber.Pool(2).map(abs, [1]),
            "pool of as many as there are": lambda: fiber.Pool().map(abs, [1]),
        }
        print("begins", flush=True)
        begin[sys.argv[1]]()
"""


class TestBeginning:
    """A program that starts while the API server is away."""

    @pytest.fixture
    def backend(self, site, monkeypatch):
        # what it is opened with waits for the cluster
        monkeypatch.setattr("k8s_site.StatusRecorder", lambda *_: None)
        backend = site.open(timing=Timing(outage_notice=0.0))
        yield backend
        backend.recorder = StatusRecorder(backend, backend.run)

    def test_its_first_job_starts_when_the_server_is_back(self, site, backend, caplog):
        with concurrent.futures.ThreadPoolExecutor() as threads:
            with site.cluster.outage():
                job = threads.submit(site.start, backend)
                until(lambda: "still trying to list pods, for 60 s more" in caplog.text)
            assert job.result(60).id
        assert caplog.text.count("still trying") == 1

    @pytest.mark.parametrize("code", [429, 503])
    def test_so_it_does_where_the_server_is_busy(self, site, backend, code):
        refusal = site.cluster.refuse(
            code, retry_after=0, times=3, matching=lambda call: call.verb == "list"
        )
        assert site.start(backend).id
        assert refusal.count == 3

    def test_a_refusal_is_reported_at_once(self, site, backend, caplog):
        with (
            site.cluster.refuse(403, matching=lambda call: call.verb == "list") as refusal,
            pytest.raises(SubmitError, match="refused to list pods"),
        ):
            site.start(backend)
        assert refusal.count == 1
        assert "still trying" not in caplog.text

    def test_that_no_cluster_is_configured_too(self, tmp_path, caplog):
        config = K8sConfig(kubeconfig=str(tmp_path / "missing"))
        timing = Timing(outage_notice=0.0)
        backend = K8sBackend(BackendContext(config=config, run_id="00000004", timing=timing))
        for ask in (lambda: backend.submit(process(image="app:1")), backend.capacity):
            with pytest.raises(BackendUnavailableError, match="no cluster is configured"):
                ask()
        assert "still trying" not in caplog.text
        backend.close()

    @pytest.mark.timeout(240)
    @pytest.mark.parametrize("what", ["process", "pool", "pool of as many as there are"])
    def test_a_server_that_stays_away_is_one_line_and_one_error(
        self, site, tmp_path, tenth_timing, what
    ):
        with site.cluster.outage():
            done = site.run_program(tmp_path, BEGINNING, what)
        assert done.returncode == 1
        # without the marks below a traceback's source
        lines = [line for line in done.stderr.splitlines() if line.strip("~^ ")]
        assert lines[0].startswith("fiber: still trying to list ")
        assert lines[-1].startswith("fiber.exceptions.BackendUnavailableError: the cluster at ")
        assert "Connection refused; see whether `kubectl get pods` works" in lines[-1]
        assert done.stderr.count("Traceback") == 1
        assert len(lines) < 60, done.stderr


class TestBusy:
    @pytest.mark.parametrize("code", [429, 503])
    def test_what_may_be_asked_again_is(self, site, backend, code):
        job = site.start(backend)
        backend.recorder.running(job)
        refusal = site.cluster.refuse(
            code, retry_after=0, times=2, matching=lambda call: call.verb == "delete"
        )
        backend.kill(job)
        assert refusal.count == 2
        assert backend.recorder.end(job).reason is not None

    def test_creating_is_tried_again_where_the_cluster_is_too_busy(self, site, backend):
        refusal = site.cluster.refuse(
            429, retry_after=0, times=2, matching=lambda call: call.verb == "create"
        )
        backend.recorder.running(site.start(backend))
        assert refusal.count == 2

    @pytest.mark.parametrize("code", [409, 500, 503])
    def test_a_worker_is_created_once_after_refusals(self, site, backend, code):
        first = site.start(backend)
        refusal = site.cluster.refuse(
            code, times=3, matching=lambda call: call.verb == "create" and call.resource == "pods"
        )
        second = site.start(backend)
        backend.recorder.running(second)
        assert refusal.count == 3
        backend.recorder.running(first)

    def test_what_is_created_while_the_api_is_away_comes_afterwards(self, site, backend):
        set_durations(backend, burst=60.0)
        backend.recorder.running(site.start(backend))
        with site.cluster.outage():
            job = site.start(backend)
        backend.recorder.running(job)

    def test_what_was_created_before_the_answer_was_lost_is_not_created_twice(
        self, site, monkeypatch
    ):
        ask, lost = Connection.request, set()

        def lose(self, method, url, *rest):
            response = ask(self, method, url, *rest)
            if method != "POST" or url in lost:
                return response
            lost.add(url)
            response.close()
            raise urllib3.exceptions.ProtocolError("the connection was closed")

        monkeypatch.setattr(Connection, "request", lose)
        backend = site.open()
        job = site.start(backend, private=b"x")
        backend.recorder.running(job)
        assert {url.rpartition("/")[2].partition("?")[0] for url in lost} == {"leases", "secrets", "pods"}  # fmt: skip
        left = site.left(backend.run)
        assert sorted(one.split()[0] for one in left) == ["leases", "pods", "secrets"]
        owners = site.cluster.get("pods", job.id)["metadata"]["ownerReferences"]
        assert [one["name"] for one in owners] == [f"fiber-{backend.run}"]

    def test_a_long_wait_for_a_pod_is_reported_with_its_reason(self, site, caplog):
        backend = site.open(timing=Timing(outage_notice=0.1))
        site.cluster.refuse(503, times=3, matching=lambda call: call.verb == "create")
        backend.recorder.running(site.start(backend))
        words = [one.getMessage() for one in caplog.records if "still trying to" in one.msg]
        assert len(words) == 1
        assert "the server is currently unable to handle the request" in words[0]

    def test_what_is_given_up_while_the_api_is_away_is_killed(self, site, backend):
        set_durations(backend, burst=60.0)
        backend.recorder.running(site.start(backend))
        with site.cluster.outage():
            job = site.start(backend)
            backend.kill(job)
            assert backend.recorder.end(job).reason == Reason(ReasonKind.SIGNAL, 9)

    def test_a_refusal_of_one_in_a_burst_is_its_end(self, site, backend):
        first = site.start(backend)
        with site.cluster.refuse(403, matching=lambda call: call.verb == "create"):
            second = site.start(backend)
            status = backend.recorder.end(second)
        assert status.reason == Reason(ReasonKind.UNSCHEDULABLE)
        assert "forbidden" in status.message
        backend.recorder.running(first)

    @pytest.mark.parametrize("zone", [0, 120, -570])
    def test_a_log_goes_on_where_it_broke(self, site, backend, zone):
        job = site.start(backend, Act(log="one\n", zone=zone))
        backend.recorder.running(job)
        lines = backend.logs(job, follow=True)
        assert next(lines) == "one"
        with site.cluster.outage():
            site.cluster.say(job.id, "two\n")
        site.cluster.say(job.id, "three\n")
        site.cluster.end(job.id, code=0)
        assert list(lines) == ["two", "three"]

    def test_a_lease_outlives_an_outage(self, site):
        backend = site.open(lease=1.0)
        backend.recorder.running(site.start(backend))
        with site.cluster.outage():
            pass
        before = site.cluster.get("leases", f"fiber-{backend.run}")["spec"]["renewTime"]
        renewed = site.cluster.wait_for(
            "leases",
            lambda leases: [
                one for one in leases
                if one["metadata"]["name"] == f"fiber-{backend.run}"
                and one["spec"]["renewTime"] > before
            ],
        )  # fmt: skip
        assert renewed


def test_a_hundred_workers_cost_a_create_each_and_at_most_a_delete(scripts, record_property):
    from cluster import Cluster
    from k8s_site import Site

    capacity = {"cpu": "128", "memory": "128Gi", "pods": "200"}
    with Cluster.start(script=scripts, nodes=["big"], capacity=capacity) as cluster:
        site = Site(cluster, scripts)
        backend = site.open()
        since = time.monotonic()
        jobs = [site.start(backend, private=b"x") for _ in range(100)]
        backend.recorder.running(jobs[0])
        record_property("seconds to the first worker", time.monotonic() - since)
        for job in jobs:
            backend.recorder.running(job)
        record_property("seconds to the last worker", time.monotonic() - since)
        up = collections.Counter((one.verb, one.resource) for one in cluster.requests)
        backend.close()
        site.close()
        all_of_it = collections.Counter((one.verb, one.resource) for one in cluster.requests)
        record_property("calls", str(sorted(all_of_it.items())))
    assert up["create", "pods"] == 100
    assert sum(up.values()) <= 100 + 10
    assert sum(all_of_it.values()) <= 2 * 100 + 20
