"""Outages, expired versions, refusals and load of the API: no job is lost, no event missed."""

import collections
import concurrent.futures
import threading

import pytest
import urllib3

from cluster import Act, Cluster
from fiber.exceptions import SubmitError
from fiber.model import JobState, Reason, ReasonKind, Timing
from fiber_k8s.connection import Connection
from k8s_site import Site, StatusRecorder, set_durations
from wire_world import until

RUNNING = JobState.RUNNING


class TestStream:
    @pytest.mark.parametrize("how", ["cut_watches", "end_watches", "expire"])
    def test_events_after_a_break_are_reported_once(self, site, backend, how):
        jobs = [site.start_running(backend) for _ in range(2)]
        getattr(site.cluster, how)()
        if how == "expire":
            site.cluster.cut_watches()
        site.cluster.end(jobs[0].id, code=5)
        assert backend.recorder.end(jobs[0]).exit_code == 5
        site.start_running(backend)
        ends = [one for one in backend.recorder.of(jobs[0]) if one.state.is_terminal]
        assert len(ends) == 1
        assert backend.status([jobs[1]])[0].state is RUNNING

    def test_events_while_the_api_is_away_are_reported_afterwards(self, site, backend):
        stays, ends, goes = (site.start_running(backend) for _ in range(3))
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
        job = site.start_running(backend)
        for _ in range(4):
            # there is none to end before the pause is over
            until(lambda: site.cluster.end_watches() or pauses.acquire(timeout=0.1))
        site.cluster.end(job.id, code=0)
        assert backend.recorder.end(job).exit_code == 0

    def test_after_forgotten_history_the_list_comes_without_a_pause(self, site, monkeypatch):
        backend, another = site.open(), site.open()
        job, other = (site.start_running(backend) for _ in range(2))
        # a stream that hears of its own pods alone knows an old version of all
        site.start_running(another)
        # the regular end of a stream is followed by a pause; whatever is paused for after that stays
        monkeypatch.setattr("fiber_k8s.watch.backoff", lambda *_: iter([0.01, 3600.0]))
        site.cluster.expire()
        site.cluster.forget_requests()
        site.cluster.end_watches()
        # the list comes in pages
        monkeypatch.setattr("fiber_k8s.watch._PAGE", 1)
        site.cluster.end(job.id, code=5)
        assert backend.recorder.end(job).exit_code == 5
        assert "list" in {one.verb for one in site.cluster.requests}
        assert backend.status([other])[0].state is RUNNING


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

    @pytest.mark.parametrize("verb", ["list", "watch"])
    def test_a_refusal_is_reported_at_once(self, site, backend, caplog, verb):
        with (
            site.cluster.refuse(403, matching=lambda call: call.verb == verb) as refusal,
            pytest.raises(SubmitError, match=f"refused to {verb} pods"),
        ):
            site.start(backend)
        assert refusal.count == 1
        assert "still trying" not in caplog.text

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
    @pytest.mark.parametrize("code", [409, 429, 500, 503])
    def test_a_worker_is_created_once_after_refusals(self, site, backend, code):
        first = site.start(backend)
        refusal = site.cluster.refuse(
            code,
            retry_after=0 if code == 429 else None,
            times=3,
            matching=lambda call: (call.verb, call.resource) == ("create", "pods"),
        )
        site.start_running(backend)
        assert refusal.count == 3
        backend.recorder.running(first)

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
        job = site.start_running(backend, private=b"x")
        assert {url.rpartition("/")[2].partition("?")[0] for url in lost} == {"leases", "secrets", "pods"}  # fmt: skip
        left = site.cluster.left(backend.run)
        assert sorted(one.split()[0] for one in left) == ["leases", "pods", "secrets"]
        owners = site.cluster.get("pods", job.id)["metadata"]["ownerReferences"]
        assert [one["name"] for one in owners] == [f"fiber-{backend.run}"]

    def test_what_is_created_while_the_api_is_away_comes_afterwards_unless_it_was_given_up(
        self, site, backend
    ):
        set_durations(backend, burst=60.0)
        site.start_running(backend)
        with site.cluster.outage():
            stays, goes = site.start(backend), site.start(backend)
            backend.kill(goes)
            assert backend.recorder.end(goes).reason == Reason(ReasonKind.SIGNAL, 9)
        backend.recorder.running(stays)

    def test_a_refusal_of_one_in_a_burst_is_its_end(self, site, backend):
        first = site.start(backend)
        with site.cluster.refuse(403, matching=lambda call: call.verb == "create"):
            second = site.start(backend)
            status = backend.recorder.end(second)
        assert status.reason == Reason(ReasonKind.UNSCHEDULABLE)
        assert "forbidden" in status.message
        backend.recorder.running(first)

    def test_a_log_goes_on_where_it_broke(self, site, backend):
        job = site.start_running(backend, Act(log="one\n"))
        lines = backend.logs(job, follow=True)
        assert next(lines) == "one"
        with site.cluster.outage():
            site.cluster.say(job.id, "two\n")
        site.cluster.say(job.id, "three\n")
        site.cluster.end(job.id, code=0)
        assert list(lines) == ["two", "three"]

    def test_a_lease_outlives_an_outage(self, site):
        backend = site.open(lease=1.0)
        site.start_running(backend)

        def renewed():
            lease = site.cluster.get("leases", f"fiber-{backend.run}")
            return lease["spec"]["renewTime"]

        with site.cluster.outage():
            before = renewed()
        site.cluster.wait_for("leases", lambda _: renewed() > before)


def test_a_hundred_workers_cost_a_create_each_and_at_most_a_delete(scripts):
    capacity = {"cpu": "128", "memory": "128Gi", "pods": "200"}
    with Cluster.start(script=scripts, nodes=["big"], capacity=capacity) as cluster:
        site = Site(cluster, scripts)
        backend = site.open()
        jobs = [site.start(backend, private=b"x") for _ in range(100)]
        for job in jobs:
            backend.recorder.running(job)
        up = collections.Counter((one.verb, one.resource) for one in cluster.requests)
        site.close()
        all_of_it = collections.Counter((one.verb, one.resource) for one in cluster.requests)
    assert up["create", "pods"] == 100
    assert sum(up.values()) <= 100 + 10
    assert sum(all_of_it.values()) <= 2 * 100 + 20
    # pods are asked for by one stream, whatever their number
    assert up["get", "pods"] == 0
    assert up["watch", "pods"] <= 1
    assert up["list", "pods"] <= 1
