"""Runs of programs that are proven to be dead are removed, and never living ones."""

import functools
import itertools
from types import SimpleNamespace

import pytest

from cluster import Act
from cluster.objects import of
from fiber.backend_parts.liveness import Owner
from fiber.exceptions import BackendUnavailableError
from fiber_k8s.run_objects import CONTAINER, OWNER
from fiber_k8s.sweeping import LifeSign, Sweeper, expired, life_sign
from k8s_site import set_durations

LONG_AGO = "2020-01-01T00:00:00.000000Z"
#: a process of which nothing can be known from here
ELSEWHERE = Owner("far/boot/1/1", 1, 1.0, "far").encode()


@pytest.mark.parametrize(
    "times, is_expired",
    [
        ({"renewTime": "2026-11-20T10:00:00.000000Z"}, True),
        # one that is a little late is left alone
        ({"renewTime": "2026-11-20T10:09:20.000000Z"}, False),
        ({}, False),
        ({"acquireTime": "2026-11-20T10:00:00Z"}, True),
    ],
)
def test_leases_that_are_not_renewed_are_observed(times, is_expired):
    now = 1_795_169_400.0  # 2026-11-20T10:10:00Z
    lease = {"spec": {"leaseDurationSeconds": 30, **times}}
    assert bool(expired([lease], now, 20.0)) == is_expired


def pod(phase="Running", name="main", restarts=0, **state):
    box = {"name": name, "restartCount": restarts, "state": state}
    return {"status": {"phase": phase, "containerStatuses": [box] if state else []}}


def made_in(name="main", when="2026-11-20T10:00:00.000000Z"):
    return {"metadata": {"annotations": {CONTAINER: name}}, "spec": {"acquireTime": when}}


BEFORE, AFTER = {"startedAt": "2026-11-20T09:59:59Z"}, {"startedAt": "2026-11-20T11:00:00Z"}


@pytest.mark.parametrize(
    "found, doubt",
    [
        (pod(running={}), LifeSign.PODS),
        (pod("Pending"), LifeSign.NONE),
        (pod("Pending", waiting={"reason": "ImagePullBackOff"}), LifeSign.NONE),
        # its node has not been heard of
        (pod("Unknown"), LifeSign.PODS),
        (pod("Running"), LifeSign.PODS),
        (pod("Running", terminated={"exitCode": 1}), LifeSign.NONE),
        (pod("Failed", terminated={"exitCode": 1}), LifeSign.NONE),
    ],
)
def test_a_run_whose_pods_run_may_have_a_program(found, doubt):
    assert life_sign(made_in(), [pod("Failed"), found], None) is doubt


@pytest.mark.parametrize(
    "master, doubt",
    [
        (pod(running=BEFORE), LifeSign.MASTER),
        (pod(running=AFTER), LifeSign.MASTER),
        # of a container that was started again since, this is another program
        (pod(running=AFTER, restarts=1), LifeSign.NONE),
        (pod(running=BEFORE, restarts=1), LifeSign.MASTER),
        (pod(running={}, restarts=1), LifeSign.MASTER),
        (pod(waiting={"reason": "CrashLoopBackOff"}, restarts=1), LifeSign.NONE),
        (pod(terminated={"exitCode": 1}), LifeSign.NONE),
        (pod(name="other", running=AFTER, restarts=1), LifeSign.MASTER),
    ],
)
def test_a_program_whose_container_runs_may_be_cut_off(master, doubt):
    assert life_sign(made_in(), [], master) is doubt


@pytest.fixture
def clock():
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def sweeper(client, clock):
    return Sweeper(client, clock=lambda: clock.now)


def opened_without_collecting(site):
    """A program that sweeps nothing itself, as each does at its first job: the tests do."""
    backend = site.open()
    backend._garbage_collection = True
    return backend


@pytest.fixture
def idle(site):
    """A program between two pools: its jobs have ended."""
    backend = opened_without_collecting(site)
    backend.recorder.end(site.start(backend, Act(code=0), private=b"x"))
    return backend


@pytest.fixture
def busy(site):
    """A program whose job runs, as ``job``."""
    backend = opened_without_collecting(site)
    backend.job = site.start_running(backend, private=b"x")
    return backend


@pytest.fixture
def master(site, cluster):
    """Makes the pod that a program runs in: its job, and how a Lease refers to it."""
    backend = opened_without_collecting(site)

    def make():
        job = site.start_running(backend, entry=None, argv=("x",), detached=True)
        uid = cluster.get("pods", job.id)["metadata"]["uid"]
        return job, {"apiVersion": "v1", "kind": "Pod", "name": job.id, "uid": uid}

    yield make
    backend.cleanup(backend.run)


def change(cluster, run_id, *, owner, pods=None):
    """Have a run's Lease name another owner, and a renewal long ago, as another client."""

    def work():
        store = cluster.store
        lease = store.get(of("leases"), "default", f"fiber-{run_id}")
        lease["metadata"]["annotations"][OWNER] = owner
        lease["spec"]["renewTime"] = LONG_AGO
        if pods is not None:
            lease["metadata"]["ownerReferences"] = pods

    cluster.call(work)


def version(cluster, run_id):
    found = cluster.get("leases", f"fiber-{run_id}")
    return None if found is None else found["metadata"]["resourceVersion"]


def abandon(backend, cluster, *, owner=ELSEWHERE, pods=None):
    """Stop renewing a Lease, and make its last renewal long ago."""
    objects = backend._run_objects[backend.run]
    objects._closing = True
    objects._wake.set()
    objects._thread.join()
    change(cluster, backend.run, owner=owner, pods=pods)


def renew(backend, cluster):
    """Have a program renew its Lease now."""
    before = version(cluster, backend.run)
    backend._run_objects[backend.run].recheck()
    cluster.wait_for("leases", lambda _: version(cluster, backend.run) != before)


def looks(sweeper, clock, seconds):
    """The looks of some time, as often as they are to come; the last one."""
    found = sweeper.sweep_once()
    until = clock.now + seconds
    while clock.now < until and not found.removed:
        clock.now += max(found.interval, 1.0)
        found = sweeper.sweep_once()
    return found


class TestOutage:
    def test_nothing_that_lives_is_removed_by_the_first_program_after_it(
        self, site, busy, idle, cluster, sweeper, clock
    ):
        with cluster.outage():
            # for longer than all Leases last
            for backend in (busy, idle):
                change(cluster, backend.run, owner=ELSEWHERE)

        first = sweeper.sweep_once()
        assert first.removed == ()
        assert first.kept == {busy.run: LifeSign.PODS}
        assert list(first.observed) == [idle.run]

        # nor by one that makes its first job then
        newcomer = site.open()
        site.start_running(newcomer)
        newcomer.close()

        # each renews within a quarter of what its Lease lasts
        clock.now += first.interval
        for backend in (busy, idle):
            renew(backend, cluster)
        assert sweeper.sweep_once().observed == {}
        assert looks(sweeper, clock, 100.0).removed == ()
        for backend in (busy, idle):
            assert version(cluster, backend.run) is not None

    def test_time_in_which_the_cluster_does_not_answer_counts_for_nothing(
        self, idle, cluster, sweeper, clock
    ):
        abandon(idle, cluster)
        first = sweeper.sweep_once()
        (lasts,) = first.observed.values()
        clock.now += lasts - 1
        with cluster.outage(), pytest.raises(BackendUnavailableError):
            sweeper._client.call = functools.partial(sweeper._client.call, again=lambda _: False)
            sweeper.sweep_once()
        clock.now += 2.0
        assert sweeper.sweep_once().observed == {idle.run: lasts}
        # nor that in which nobody looked
        clock.now += lasts + 1
        assert sweeper.sweep_once().observed == {idle.run: lasts}
        assert looks(sweeper, clock, lasts + 1).removed == (idle.run,)


class TestProofs:
    def test_a_run_without_pods_whose_lease_is_observed_not_to_be_renewed_is_over(
        self, site, idle, cluster, client, sweeper, clock
    ):
        abandon(idle, cluster)
        (lasts,) = sweeper.sweep_once().observed.values()
        # as long as a Lease lasts
        assert lasts == 40.0
        found = looks(sweeper, clock, lasts - 10.0)
        assert found.removed == ()
        # a dry run only reports
        dry = Sweeper(client, dry_run=True, clock=lambda: clock.now)
        assert looks(dry, clock, 100.0).removed == (idle.run,)
        assert version(cluster, idle.run) is not None
        assert looks(sweeper, clock, 100.0).removed == (idle.run,)
        site.cluster.wait_until_gone(idle.run)
        assert sweeper.sweep_once() == type(found)()

    def test_one_whose_pods_run_is_over_once_they_have_ended(self, busy, cluster, sweeper, clock):
        abandon(busy, cluster)
        assert looks(sweeper, clock, 100.0).kept == {busy.run: LifeSign.PODS}
        busy.kill(busy.job)
        busy.recorder.end(busy.job)
        assert looks(sweeper, clock, 100.0).removed == (busy.run,)

    def test_one_whose_process_is_known_to_have_ended_is_over_at_once(
        self, site, busy, cluster, sweeper
    ):
        abandon(busy, cluster, owner=Owner.current()._replace(pid=4194304).encode())
        assert sweeper.sweep_once().removed == (busy.run,)
        site.cluster.wait_until_gone(busy.run)

    def test_one_whose_process_lives_here_is_not(self, idle, cluster, sweeper, clock):
        abandon(idle, cluster, owner=Owner.current().encode())
        assert looks(sweeper, clock, 100.0).removed == ()
        assert version(cluster, idle.run) is not None

    def test_one_whose_own_pod_has_ended_is_over_at_once(self, busy, master, cluster, sweeper):
        pod, reference = master()
        abandon(busy, cluster, pods=[reference])
        cluster.end(pod.id, code=1)
        cluster.wait_for("pods", lambda _: cluster.get("pods", pod.id)["status"]["phase"] == "Failed")  # fmt: skip
        assert sweeper.sweep_once().removed == (busy.run,)

    def test_a_lease_that_is_renewed_while_it_is_judged_stays(self, idle, cluster, client, clock):
        change(cluster, idle.run, owner=ELSEWHERE)
        sweeper = Sweeper(client, clock=lambda: clock.now)
        (lasts,) = sweeper.sweep_once().observed.values()
        pods, told = client.pods, itertools.count()

        def renewed_meanwhile(selector):
            # after the Leases were listed, before one is deleted
            if next(told) == 4:
                renew(idle, cluster)
            return pods(selector)

        client.pods = renewed_meanwhile
        assert looks(sweeper, clock, lasts).removed == ()
        assert next(told) > 4
        assert version(cluster, idle.run) is not None


class TestWaiting:
    @pytest.fixture
    def opened(self, site):
        """Opens backends with Leases that last no longer than they are to, and are looked at at once."""

        def make():
            backend = site.open(lease=1.0)
            set_durations(backend, lease_margin=0.0, lease_slack=0.0)
            return backend

        return make

    @pytest.fixture
    def dead(self, site, cluster, opened):
        backend = opened()
        backend.recorder.end(site.start(backend, Act(code=0)))
        abandon(backend, cluster)
        return backend

    def test_a_sweep_waits_for_proof_and_logs_it(self, opened, dead, caplog):
        assert opened().sweep() == [dead.run]
        (line,) = [one for one in caplog.messages if "waiting" in one]
        assert line == (
            "fiber: waiting 1 s to see whether programs that do not renew their Leases are there "
            f"({dead.run})"
        )

    def test_a_sweep_reports_what_stays_and_why(self, site, cluster, opened, caplog):
        backend = opened()
        site.start_running(backend)
        abandon(backend, cluster)
        assert opened().sweep() == []
        assert f"fiber: run {backend.run} is kept: nobody renews its Lease, but its pods run" in caplog.messages  # fmt: skip

    def test_a_program_removes_in_the_background_what_another_one_left(self, site, dead, opened):
        newcomer = opened()
        site.start_running(newcomer)
        site.cluster.wait_until_gone(dead.run)


def test_a_lease_names_its_process(site, cluster, backend):
    site.start(backend)
    found = cluster.get("leases", f"fiber-{backend.run}")
    assert Owner.decode(found["metadata"]["annotations"][OWNER]) == Owner.current()
