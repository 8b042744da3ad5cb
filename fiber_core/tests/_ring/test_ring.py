"""Rings of processes: ranks, results, failures, and policies of start and end."""

import os
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import fiber
from commands import ran
from fiber._ring.model import RingTiming
from fiber._runtime import runtime
from fiber.exceptions import FiberError
from fiber.experimental import ConditionKind, Ring, RingError, RingPhase, current_ring

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(180),
]


def fails_in_one(rank, size):
    if rank == 0:
        raise ValueError("no good")
    time.sleep(60)


def members_of(ring):
    return [one for one in fiber.active_children() if one.name.startswith(ring.name)]


def test_results_come_by_rank_and_every_rank_knows_itself_by_its_environment():
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"]
    names += ["MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"]

    def func(rank, size):
        return rank, size, current_ring().local_rank, {name: os.environ[name] for name in names}

    # groups have resources of their own
    found = Ring([(1, fiber.meta(slots=2)), (1, fiber.meta(cpu=0.5))], func).run()

    assert [one[:2] for one in found] == [(0, 3), (1, 3), (2, 3)]
    for rank, _, local_rank, environ in found:
        assert (environ["RANK"], environ["LOCAL_RANK"]) == (str(rank), str(local_rank))
        assert environ["WORLD_SIZE"] == "3"
        assert environ["NCCL_SOCKET_IFNAME"] == "=" + environ["GLOO_SOCKET_IFNAME"]
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for *_, one in found}) == 1


def test_the_port_of_a_member_is_free_for_it_alone_and_it_can_have_children():
    def func(rank, size):
        import socket

        me = current_ring().me
        with socket.create_server(("", me.port)) as server, fiber.Pool(1) as pool:
            return server.getsockname()[1] == me.port, pool.apply(abs, (-rank,))

    assert Ring(2, func).run() == [(True, 0), (True, 1)]


def test_an_exception_is_reported_with_rank_host_and_traceback():
    with pytest.raises(RingError, match="rank 0 on .*raised: ValueError: no good") as caught:
        Ring(3, fails_in_one).run()

    assert caught.value.failure.rank == 0
    assert caught.value.failure.host
    assert 'raise ValueError("no good")' in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "number, jobs, slots, code, reason",
    [
        (None, 2, 1, 3, "EXIT(3)"),
        (signal.SIGKILL, 2, 1, -9, "SIGNAL(9)"),
        # one process of several
        (signal.SIGKILL, 1, 2, -9, "SIGNAL(9)"),
    ],
    ids=["exit", "signal", "one of a job"],
)
def test_the_end_of_a_rank_is_reported_and_ends_the_others(number, jobs, slots, code, reason):
    def func(rank, size):
        if rank == 1:
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            if number is None:
                sys.exit(3)
            os.kill(os.getpid(), number)
        time.sleep(60)

    with pytest.raises(RingError) as caught:
        Ring(jobs, func, slots=slots).run()

    failure = caught.value.failure
    assert (failure.rank, failure.exit_code, failure.reason) == (1, code, reason)
    assert "last words" in str(caught.value)


def test_a_stopped_rank_is_given_up():
    def func(rank, size):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)

    with pytest.raises(RingError, match="LEASE: it gave no sign of life for 2 s") as caught:
        Ring(2, func, heartbeat=2.0).run()

    assert caught.value.failure.worker is not None


@pytest.mark.parametrize(
    "func, initializer, told",
    [
        (lambda rank, size: (x for x in ()), None, "rank 0 .*raised"),
        (print, lambda ring: {}["nothing there"], "KeyError"),
    ],
    ids=["a result that cannot be sent", "an initializer that raises"],
)
def test_other_failures_of_user_code(func, initializer, told):
    with pytest.raises(RingError, match=told):
        Ring(1, func, initializer).run()


def test_a_function_that_cannot_be_pickled_is_an_error_at_once():
    ring = Ring(2, print, lambda ring, x: None, (sys._getframe(),))

    with pytest.raises(TypeError, match="pickle"):
        ring.start()


def test_the_deadline_ends_it():
    with pytest.raises(RingError, match="DeadlineExceeded: it was not done within 1 s"):
        Ring(1, lambda rank, size: time.sleep(60), deadline=1.0).run()


def test_a_program_that_was_stopped_loses_no_member(monkeypatch):
    ahead = [0.0]
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr("fiber._ring.controller.time", clock)
    go = fiber.Event()
    ring = Ring(2, lambda rank, size: go.wait(60))
    ring.start()
    assert ring.wait_for(lambda status: status.has(ConditionKind.RUNNING), 60)

    # as after a stop of this process: an hour has passed, and nobody was heard
    ahead[0] = 3600.0
    # the controller has looked at it
    with pytest.raises(ValueError, match="cannot have 9"):
        ring.resize(9)
    go.set()

    assert ring.join() == [True, True]


def test_a_start_is_tried_again_as_often_as_it_may(monkeypatch):
    # further attempts come soon; all else has its time
    timing = SimpleNamespace(at=lambda scale: RingTiming(backoff=0.05 * scale))
    monkeypatch.setattr("fiber._ring.ring.RingTiming", timing)
    launcher = runtime.current().launcher
    launch, refusals = launcher.launch, [FiberError("no room for it just now")] * 2

    def busy(process, **options):
        if refusals:
            raise refusals.pop()
        return launch(process, **options)

    monkeypatch.setattr(launcher, "launch", busy)
    ring = Ring(1, lambda rank, size: rank, backoff_limit=2)

    assert ring.run() == [0]
    assert refusals == []
    reasons = [event.reason for event in ring.status().events]
    assert reasons.count("GangFailed") == 2


def test_all_ranks_start_again_with_the_state_of_a_survivor():
    committed = fiber.Event()

    def init(ring, event):
        if ring.restarts == 0 and ring.rank == 1:
            ring.commit("state of 1", step=5)
            event.set()
        elif ring.restarts == 0:
            assert event.wait(30)
            os.kill(os.getpid(), signal.SIGKILL)

    def func(rank, size):
        ring = current_ring()
        if ring.restarts == 0:
            time.sleep(60)
        return ring.state, ring.step, os.environ["FIBER_RING_RESTARTS"]

    assert Ring(2, func, init, (committed,), max_restarts=1).run() == [("state of 1", 5, "1")] * 2


def test_join_gives_up_when_time_runs_out_and_terminate_ends_it_for_good():
    ring = Ring(2, lambda rank, size: time.sleep(60))
    ring.start()

    assert ring.join(0.05) is None
    ring.terminate()
    with pytest.raises(RingError, match="Terminated"):
        ring.join()
    with pytest.raises(fiber.FiberError, match="only be started once"):
        ring.start()


def test_a_job_that_is_accepted_after_its_ring_was_ended_is_ended(monkeypatch):
    launcher = runtime.current().launcher
    launch, go = launcher.launch, threading.Event()

    def late(process, **options):
        if process.name.endswith(".1"):
            assert go.wait(60)
        return launch(process, **options)

    monkeypatch.setattr(launcher, "launch", late)
    ring = Ring(2, lambda rank, size: time.sleep(60))
    ring.start()
    ring.terminate()
    go.set()

    with pytest.raises(RingError, match="Terminated"):
        ring.join()
    assert members_of(ring) == []


def test_a_ring_can_be_suspended_and_goes_on_from_what_was_committed():
    committed = fiber.SimpleQueue()

    def func(rank, size):
        ring = current_ring()
        if ring.state is None:
            ring.commit({"step": 7}, step=7)
            committed.put(rank)
            time.sleep(60)
        return ring.state, ring.restarts

    ring = Ring(2, func)
    ring.start()
    assert {committed.get(), committed.get()} == {0, 1}
    ring.suspend()
    assert ring.wait_for(lambda status: status.phase is RingPhase.SUSPENDED, 60)
    ring.resume()

    assert ring.join() == [({"step": 7}, 0)] * 2
    assert ring.status().has(ConditionKind.SUCCEEDED)


def test_an_elastic_ring_is_resized_while_it_runs():
    committed = fiber.SimpleQueue()

    def func(rank, size):
        ring = current_ring()
        seen = [*(ring.state or []), size]
        ring.commit(seen, step=len(seen))
        if len(seen) < 3:
            committed.put(rank)
            time.sleep(60)
        return seen

    ring = Ring(3, func, min=1, max=3)
    ring.start()
    for before, after in ((3, 2), (2, 3)):
        assert {committed.get() for _ in range(before)} == set(range(before))
        ring.resize(after)

    assert ring.join() == [[3, 2, 3]] * 3
    assert ring.status().restarts == 0


@pytest.mark.parametrize(
    "clean, running, known", [("all", 0, False), ("running", 0, True), ("none", 1, True)]
)
def test_what_is_cleaned_is_what_was_asked_for(clean, running, known):
    ring = Ring(2, fails_in_one, clean=clean)
    with pytest.raises(RingError, match="no good"):
        ring.run()

    for member in members_of(ring):
        if member.name.endswith(".0"):
            # nobody ends the one that raised: it leaves by itself
            member.join(30)
    assert len(members_of(ring)) == running
    # what is known of a ring is kept by its coordinator
    assert ring._controller.wait_closed(0) is not known
    assert ring.status().has(ConditionKind.FAILED)

    ring.terminate()
    assert ring._controller.wait_closed(30)
    assert members_of(ring) == []


@pytest.mark.parametrize("clean", ["all", "none"])
def test_what_is_known_goes_when_its_time_to_live_is_over(clean):
    ring = Ring(2, fails_in_one, clean=clean, ttl=1.0)
    with pytest.raises(RingError, match="no good"):
        ring.run()
    assert not ring._controller.wait_closed(0)

    assert ring._controller.wait_closed(30)
    assert members_of(ring) == []


def test_the_caller_can_be_rank_0():
    here = os.getpid()
    seen = []

    def func(rank, size):
        if rank == 0:
            seen.append(os.environ["RANK"])
        return os.getpid() == here

    before = dict(os.environ)
    # a closure goes to the others by value, and is the caller's own here
    assert Ring(2, func, rank0="caller").run() == [True, False]
    assert seen == ["0"]
    assert dict(os.environ) == before


def test_the_caller_learns_of_another_members_failure_while_its_own_rank_waits():
    learnt = fiber.Event()

    def func(rank, size):
        if rank == 1:
            raise ValueError("the other one")
        learnt.wait(60)

    with pytest.raises(RingError, match="the other one"):
        Ring(2, func, rank0="caller").run()
    learnt.set()


@pytest.mark.parametrize(
    "arguments,error,text",
    [
        ({"processes": 0}, ValueError, "at least 1"),
        ({"processes": "2"}, TypeError, "number or a list of groups"),
        ({"processes": [2]}, TypeError, "pair"),
        ({"func": None}, TypeError, "func must be callable"),
        ({"initializer": 1}, TypeError, "initializer must be callable"),
        ({"rank0": "me"}, ValueError, "rank0"),
        ({"clean": "some"}, ValueError, "'none', 'running', 'all'"),
        ({"framework": "caffe"}, fiber.FiberError, "installed are .*horovod.*torch"),
        ({"framework": 3}, TypeError, "framework"),
        ({"min": 3}, ValueError, "min=3"),
        ({"min": 3, "max": 2}, ValueError, "max must be at least min"),
        ({"heartbeat": 0.0}, ValueError, "heartbeat"),
        ({"max_restarts": -1}, ValueError, "max_restarts"),
        ({"rank0": "caller", "max_restarts": 1}, ValueError, "cannot restart"),
    ],
)
def test_misuse_is_an_error_of_the_constructor(arguments, error, text):
    with pytest.raises(error, match=text):
        Ring(**{"processes": 2, "func": print, **arguments})


# -- live rings: members come and go while the others go on


def until(queue, wanted):
    """Return items of a queue until all expected ones have come."""
    found = []
    while not wanted <= {place for _, place in found}:
        found.append(queue.get())
    return found


def slots():
    """Slots on all hosts of the moment, as an elastic launcher asks for them."""
    script = os.environ["FIBER_RING_DISCOVER_HOSTS"]
    done = ran([script], check=True)
    return sum(int(line.rpartition(":")[2]) for line in done.stdout.split())


def places(rank, size, queue, doom):
    """Send each new rank and size with the process id, until there are four ranks."""
    ring, who = current_ring(), (socket.gethostname(), os.getpid())
    while True:
        seen, place = ring.changes, (ring.rank, slots())
        queue.put((who, place))
        if place[1] == 4:
            return who, place[0]
        if place == (1, 3) and not seen:
            # nobody else knows it by a number on every backend
            doom.get()
            os.kill(os.getpid(), signal.SIGKILL)
        assert ring.wait_for_change(seen, 60)


def test_members_come_and_go_and_the_others_do_not_restart():
    queue, doom = fiber.SimpleQueue(), fiber.SimpleQueue()
    ring = Ring(
        3,
        lambda rank, size: places(rank, size, queue, doom),
        min=1,
        max=4,
        elastic="live",
        framework="mpi",
    )
    ring.start()
    began = {place[0]: who for who, place in until(queue, {(0, 3), (1, 3), (2, 3)})}

    doom.put(None)
    until(queue, {(0, 2), (1, 2)})
    # somebody comes in its place
    until(queue, {(0, 3), (1, 3), (2, 3)})
    ring.resize(4)

    found = ring.join()
    assert [rank for _, rank in found] == [0, 1, 2, 3]
    # those that were not killed are the processes that they were
    assert [who for who, _ in found[:2]] == [began[0], began[2]]
    status = ring.status()
    assert (status.rounds, status.restarts, status.changes) == (1, 0, 3)
    assert status.has(ConditionKind.SUCCEEDED)


def test_a_newcomer_goes_on_from_what_the_others_know():
    offered = fiber.Event()

    def func(rank, size):
        ring = current_ring()
        if ring.state is not None:
            return ring.state, ring.step
        ring.offer(lambda: ("what they know", 12))
        offered.set()
        assert ring.wait_for_change(0, 60)
        return None

    ring = Ring(1, func, min=1, max=2, elastic="live")
    ring.start()
    assert offered.wait(60)

    ring.resize(2)

    assert ring.join() == [None, ("what they know", 12)]
