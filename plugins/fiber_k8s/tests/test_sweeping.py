"""Runs of programs that are proven to be dead are removed, and never living ones."""

import contextlib
import itertools
import json
import logging

import pytest

from cluster import Act
from cluster.objects import of
from fiber.backend_parts.liveness import Owner
from fiber.exceptions import BackendUnavailableError
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.run_objects import CONTAINER, LEASES, OWNER
from fiber_k8s.sweeping import LifeSign, Sweeper, expired, life_sign
from k8s_site import set_durations

LONG_AGO = "2020-01-01T00:00:00.000000Z"
#: a process of which nothing can be known from here
ELSEWHERE = Owner("far/boot/1/1", 1, 1.0, "far").encode()


def lease(renewed, lasts=30):
    return {"spec": {"renewTime": renewed, "leaseDurationSeconds": lasts}}


@pytest.mark.parametrize(
    "found, is_expired",
    [
        (lease("2026-11-20T10:00:00.000000Z"), True),
        # one that is a little late is left alone
        (lease("2026-11-20T10:09:20.000000Z"), False),
        (lease("2026-11-20T10:09:59.000000Z"), False),
        ({"spec": {}}, False),
        ({"spec": {"acquireTime": "2026-11-20T10:00:00Z", "leaseDurationSeconds": 30}}, True),
    ],
)
def test_leases_that_are_not_renewed_are_observed(found, is_expired):
    now = 1_795_169_400.0  # 2026-11-20T10:10:00Z
    assert bool(expired([found], now, 20.0)) == is_expired


def pod(phase="Running", name="main", restarts=0, **state):
    box = {"name": name, "restartCount": restarts, "state": state}
    return {"status": {"phase": phase, "containerStatuses": [box] if state else []}}


def made_in(name="main", when="2026-11-20T10:00:00.000000Z"):
    return {"metadata": {"annotations": {CONTAINER: name}}, "spec": {"acquireTime": when}}


BEFORE, AFTER = {"startedAt": "2026-11-20T09:59:59Z"}, {"startedAt": "2026-11-20T11:00:00Z"}


class TestDoubts:
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
            (pod("Succeeded"), LifeSign.NONE),
        ],
    )
    def test_a_run_whose_pods_run_may_have_a_program(self, found, doubt):
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
    def test_a_program_whose_container_runs_may_be_cut_off(self, master, doubt):
        assert life_sign(made_in(), [], master) is doubt


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(site):
    with contextlib.closing(Client(K8sConfig(kubeconfig=str(site.cluster.kubeconfig)))) as client:
        yield client


@pytest.fixture
def sweeper(client, clock):
    return Sweeper(client, clock=clock)


@pytest.fixture
def cluster(site):
    return site.cluster


def change(cluster, run_id, *, owner=None, renewed=None, pods=None):
    """Change a run's Lease as another client."""

    def work():
        store = cluster.parts.store
        lease = store.get(of("leases"), "default", f"fiber-{run_id}")
        if owner is not None:
            lease["metadata"]["annotations"][OWNER] = owner
        if renewed is not None:
            lease["spec"]["renewTime"] = renewed
        if pods is not None:
            lease["metadata"]["ownerReferences"] = pods

    cluster.call(work)


def version(cluster, run_id):
    found = cluster.get("leases", f"fiber-{run_id}")
    return None if found is None else found["metadata"]["resourceVersion"]


def abandon(backend, cluster, *, owner=ELSEWHERE):
    """Stop renewing a Lease, and make its last renewal long ago."""
    objects = backend._run_objects[backend.run]
    objects._closing = True
    objects._wake.set()
    objects._thread.join()
    change(cluster, backend.run, owner=owner, renewed=LONG_AGO)


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
        self, site, cluster, sweeper, clock
    ):
        busy, idle = [site.open() for _ in range(2)], site.open()
        for backend in busy:
            backend.recorder.running(site.start(backend, private=b"x"))
        # one that is between two pools
        idle.recorder.end(site.start(idle, Act(code=0)))
        with cluster.outage():
            # for longer than all Leases last
            for backend in (*busy, idle):
                change(cluster, backend.run, owner=ELSEWHERE, renewed=LONG_AGO)

        first = sweeper.sweep_once()
        assert first.removed == ()
        assert first.kept == {backend.run: LifeSign.PODS for backend in busy}
        assert list(first.observed) == [idle.run]

        # each renews within a quarter of what its Lease lasts
        clock.now += first.interval
        for backend in (*busy, idle):
            renew(backend, cluster)
        assert sweeper.sweep_once().observed == {}
        assert looks(sweeper, clock, 100.0).removed == ()
        for backend in (*busy, idle):
            assert version(cluster, backend.run) is not None

    def test_a_program_that_makes_its_first_job_then_removes_nothing_that_lives(
        self, site, cluster
    ):
        other, newcomer = site.open(), site.open()
        job = site.start(other, private=b"x")
        other.recorder.running(job)
        with cluster.outage():
            change(cluster, other.run, owner=ELSEWHERE, renewed=LONG_AGO)
        newcomer.recorder.running(site.start(newcomer))
        newcomer.close()
        assert job.id in [one["metadata"]["name"] for one in cluster.objects("pods")]
        assert version(cluster, other.run) is not None

    def test_time_in_which_the_cluster_does_not_answer_counts_for_nothing(
        self, site, cluster, sweeper, clock
    ):
        idle = site.open()
        idle.recorder.end(site.start(idle, Act(code=0)))
        abandon(idle, cluster)
        first = sweeper.sweep_once()
        (lasts,) = first.observed.values()
        clock.now += lasts - 1
        with cluster.outage(), pytest.raises(BackendUnavailableError):
            sweeper._client.call = without_retries(sweeper._client.call)
            sweeper.sweep_once()
        clock.now += 2.0
        assert sweeper.sweep_once().observed == {idle.run: lasts}
        # nor that in which nobody looked
        clock.now += lasts + 1
        assert sweeper.sweep_once().observed == {idle.run: lasts}
        assert looks(sweeper, clock, lasts + 1).removed == (idle.run,)


def without_retries(call):
    def once(*arguments, **options):
        return call(*arguments, **{**options, "again": lambda _: False})

    return once


class TestProofs:
    def test_a_run_without_pods_whose_lease_is_observed_not_to_be_renewed_is_over(
        self, site, cluster, sweeper, clock
    ):
        dead = site.open()
        dead.recorder.end(site.start(dead, Act(code=0), private=b"x"))
        abandon(dead, cluster)
        (lasts,) = sweeper.sweep_once().observed.values()
        # as long as a Lease lasts
        assert lasts == 40.0
        found = looks(sweeper, clock, lasts - 10.0)
        assert found.removed == ()
        assert looks(sweeper, clock, 20.0).removed == (dead.run,)
        site.wait_until_gone(dead.run)
        assert sweeper.sweep_once() == type(found)()

    def test_one_whose_pods_run_is_over_once_they_have_ended(self, site, cluster, sweeper, clock):
        dead = site.open()
        job = site.start(dead)
        dead.recorder.running(job)
        abandon(dead, cluster)
        assert looks(sweeper, clock, 100.0).kept == {dead.run: LifeSign.PODS}
        dead.kill(job)
        dead.recorder.end(job)
        assert looks(sweeper, clock, 100.0).removed == (dead.run,)

    def test_one_whose_process_is_known_to_have_ended_is_over_at_once(self, site, cluster, sweeper):
        dead = site.open()
        dead.recorder.running(site.start(dead))
        abandon(dead, cluster, owner=Owner.current()._replace(pid=4194304).encode())
        assert sweeper.sweep_once().removed == (dead.run,)
        site.wait_until_gone(dead.run)

    def test_one_whose_process_lives_here_is_not(self, site, cluster, sweeper, clock):
        stopped = site.open()
        stopped.recorder.end(site.start(stopped, Act(code=0)))
        abandon(stopped, cluster, owner=Owner.current().encode())
        assert looks(sweeper, clock, 100.0).removed == ()
        assert version(cluster, stopped.run) is not None

    def test_one_whose_own_pod_has_ended_is_over_at_once(self, site, cluster, sweeper):
        dead, master = site.open(), site.open()
        dead.recorder.running(site.start(dead))
        pod = site.start(master, Act(code=1, after=0.2), entry=None, argv=("x",), detached=True)
        owner = cluster.get("pods", pod.id)
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod.id, "uid": owner["metadata"]["uid"]}  # fmt: skip
        abandon(dead, cluster)
        change(cluster, dead.run, pods=[reference])
        master.recorder.end(pod)
        cluster.wait_for("pods", lambda _: cluster.get("pods", pod.id)["status"]["phase"] == "Failed")  # fmt: skip
        assert sweeper.sweep_once().removed == (dead.run,)
        master.cleanup(master.run)

    def test_one_whose_own_pod_runs_stays(self, site, cluster, sweeper, clock):
        cut_off, master = site.open(), site.open()
        cut_off.recorder.end(site.start(cut_off, Act(code=0)))
        pod = site.start(master, entry=None, argv=("x",), detached=True)
        master.recorder.running(pod)
        uid = cluster.get("pods", pod.id)["metadata"]["uid"]
        abandon(cut_off, cluster)
        change(cluster, cut_off.run, pods=[{"apiVersion": "v1", "kind": "Pod", "name": pod.id, "uid": uid}])  # fmt: skip
        assert looks(sweeper, clock, 100.0).kept == {cut_off.run: LifeSign.MASTER}
        assert version(cluster, cut_off.run) is not None
        master.cleanup(master.run)

    def test_a_lease_that_is_renewed_while_it_is_judged_stays(self, site, cluster, client, clock):
        late = site.open()
        late.recorder.end(site.start(late, Act(code=0)))
        change(cluster, late.run, owner=ELSEWHERE, renewed=LONG_AGO)
        sweeper = Sweeper(client, clock=clock)
        (lasts,) = sweeper.sweep_once().observed.values()
        pods, told = client.pods, itertools.count()

        def renewed_meanwhile(selector):
            # after the Leases were listed, before one is deleted
            if next(told) == 4:
                renew(late, cluster)
            return pods(selector)

        client.pods = renewed_meanwhile
        assert looks(sweeper, clock, lasts).removed == ()
        assert next(told) > 4
        assert version(cluster, late.run) is not None

    def test_a_dry_run_only_reports(self, site, cluster, client, clock):
        dead = site.open()
        dead.recorder.end(site.start(dead, Act(code=0)))
        abandon(dead, cluster)
        assert looks(Sweeper(client, dry_run=True, clock=clock), clock, 100.0).removed == (
            dead.run,
        )
        assert version(cluster, dead.run) is not None


class TestWaiting:
    @pytest.fixture
    def opened(self, site):
        """Opens backends with Leases that last no longer than they are to, and are looked at at once."""

        def make(**settings):
            backend = site.open(**settings)
            set_durations(backend, lease_margin=0.0, lease_slack=0.0)
            return backend

        return make

    @pytest.fixture
    def dead(self, site, cluster, opened):
        backend = opened(lease=1.0)
        backend.recorder.end(site.start(backend, Act(code=0)))
        abandon(backend, cluster)
        return backend

    def test_a_sweep_waits_for_proof_and_logs_it(self, opened, dead, caplog):
        with caplog.at_level(logging.WARNING, "fiber"):
            assert opened().sweep() == [dead.run]
        (line,) = [one for one in caplog.messages if "waiting" in one]
        assert line == (
            "fiber: waiting 1 s to see whether programs that do not renew their Leases are there "
            f"({dead.run})"
        )

    def test_a_sweep_reports_what_stays_and_why(self, site, cluster, opened, caplog):
        backend = opened(lease=1.0)
        backend.recorder.running(site.start(backend))
        abandon(backend, cluster)
        with caplog.at_level(logging.WARNING, "fiber"):
            assert opened().sweep() == []
        assert f"fiber: run {backend.run} is kept: nobody renews its Lease, but its pods run" in caplog.messages  # fmt: skip

    def test_no_wait_where_all_leases_are_renewed(self, site, opened, caplog):
        site.start(opened())
        with caplog.at_level(logging.WARNING, "fiber"):
            assert opened().sweep() == []
        assert caplog.messages == []

    def test_a_program_removes_in_the_background_what_another_one_left(self, site, dead, opened):
        newcomer = opened()
        newcomer.recorder.running(site.start(newcomer))
        site.wait_until_gone(dead.run)


def test_a_lease_names_its_process(site, cluster, backend):
    site.start(backend)
    found = cluster.get("leases", f"fiber-{backend.run}")
    assert Owner.decode(found["metadata"]["annotations"][OWNER]) == Owner.current()
    assert json.dumps(found).count(LEASES) == 1
