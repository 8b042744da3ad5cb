"""Addresses of a process: as the plugins say, as its job can dial, as the tunnel knows."""

import socket
from types import SimpleNamespace

import pytest

from fiber._launch.router import Router
from fiber._tunnel import server
from fiber.exceptions import TransportError
from fiber.model import Job, JobSpec, JobState, JobStatus, ListenAddress, Reach, ReachKind, Timing

ROUTE = "tunnel+tls+tcp://ab12cd34@127.0.0.1:555"
REMOTE = "tls+tcp://a:1"


def router(*, forwards=None, tunnelled=False, kind=ReachKind.REVERSED):
    instructions = SimpleNamespace(forwards=forwards or {}, tunnelled=tunnelled)
    return Router(
        SimpleNamespace(
            instructions=instructions,
            ident="me.0",
            directory="folder",
            backend=SimpleNamespace(
                reach=lambda job: Reach(kind, "as it is"),
                open_stream=lambda job: f"a stream into {job.id}",
            ),
            timing=Timing(),
        )
    )


class Hub:
    def __init__(self):
        self.seen = []

    def add(self, ident, name, open_stream):
        self.seen.append(("add", ident, open_stream()))

    def __getattr__(self, name):
        return lambda what: self.seen.append((name, what))

    def resolve(self, url):
        return f"the tunnel's way to {url}"


def client_router(**options):
    """The router of a program whose jobs are reached by streams."""
    found = router(**options)
    found._client = Hub()
    return found


class TestAddresses:
    def test_what_can_be_dialled_is_and_what_is_forwarded_is_dialled_where_that_is(self):
        found = router(forwards={REMOTE: "tls+tcp://127.0.0.1:9"})
        assert found.resolve(REMOTE) == "tls+tcp://127.0.0.1:9"
        assert found.resolve("tls+tcp://b:1") == "tls+tcp://b:1"
        assert router().resolve(REMOTE) == REMOTE

    def test_the_tunnel_knows_the_way_and_that_of_another_program_is_not_reached(self):
        assert client_router().resolve(ROUTE) == f"the tunnel's way to {ROUTE}"
        with pytest.raises(TransportError, match="cannot be reached from here"):
            router().resolve(ROUTE)

    def test_addresses_are_tried_in_their_owners_order_save_the_programs_and_loopback(self):
        job, loopback = router(tunnelled=True), "tls+tcp://127.0.0.1:1"
        for urls in [ROUTE, REMOTE], [REMOTE, ROUTE]:
            assert list(job.rank(urls)) == list(router().rank(urls)) == urls
            assert list(client_router().rank(urls)) == [ROUTE, REMOTE]
        # what is loopback elsewhere comes last
        assert list(job.rank([loopback, ROUTE])) == [ROUTE, loopback]

    def test_the_tunnel_lets_jobs_in_where_the_program_listens(self):
        found = client_router()
        route = found.tunnel_route("tls+tcp://10.0.0.1:5")
        assert route == "tunnel+tls+tcp://me.0@10.0.0.1:5"
        found.withdraw("tls+tcp://10.0.0.1:5")
        found.withdraw("unix:///nowhere")
        assert found._client.seen == [("register", route), ("withdraw", route)]
        address = ListenAddress(bind_url="tls+tcp://0.0.0.0:0", advertise_host="name.example")
        route = found.tunnel_route("tls+tcp://name.example:5", address)
        assert route == "tunnel+tls+tcp://me.0@127.0.0.1:5"
        # nobody is let in where there is no tunnel
        assert router().tunnel_route("tls+tcp://10.0.0.1:5") is None

    def test_a_route_is_registered_once_and_withdrawn(self, monkeypatch):
        seen = []
        local, peer = socket.socketpair()
        monkeypatch.setattr(server, "register", lambda *args, timeout: seen.append(args) or local)
        found = router(tunnelled=True)
        for _ in range(2):
            route = found.tunnel_route("tls+tcp://10.0.0.1:5")
            assert route == "tunnel+tls+tcp://me.0@10.0.0.1:5"
        assert seen == [("folder", route)]
        found.withdraw("tls+tcp://10.0.0.1:5")
        with peer:
            assert peer.recv(1) == b""
        found.close()


class TestJobs:
    JOB = Job(id="pod-1", name="one", run_id="0badcafe", backend="remote")
    SPEC = JobSpec(run_id="0badcafe", name="one", argv=("x",), ident="ab12cd34")

    def statuses_seen(self, *statuses, kind=ReachKind.REVERSED):
        found = client_router(kind=kind)
        for state in statuses:
            if state is None:
                found.submitted(self.SPEC, self.JOB)
            else:
                found.observed(self.JOB, JobStatus(state=state))
        return found._client.seen

    ADDED = ("add", "ab12cd34", "a stream into pod-1")

    def test_streams_are_opened_as_long_as_a_job_runs(self):
        seen = self.statuses_seen(None, JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED)
        assert seen == [self.ADDED, ("begin", "ab12cd34"), ("remove", "ab12cd34")]

    def test_none_is_opened_into_a_job_that_dials(self):
        seen = self.statuses_seen(None, JobState.RUNNING, JobState.SUCCEEDED, kind=ReachKind.DIRECT)
        assert seen == [self.ADDED, ("remove", "ab12cd34")]

    def test_one_that_runs_before_submit_has_returned_is_no_different(self):
        assert self.statuses_seen(JobState.RUNNING, None) == [self.ADDED, ("begin", "ab12cd34")]

    def test_without_a_tunnel_there_is_nothing_to_do(self):
        found = router()
        found.submitted(self.SPEC, self.JOB)
        found.observed(self.JOB, JobStatus(state=JobState.RUNNING))
        found.close()
