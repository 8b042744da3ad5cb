"""Rings of processes: ranks, results and failures."""

import os
import signal
import sys
import time

import pytest

import fiber
from fiber.experimental import ConditionKind, Ring, RingError, RingPhase, current_ring

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(120),
]


def square(rank, size):
    return rank * rank, size


def test_results_come_by_rank():
    assert Ring(3, square).run() == [(0, 3), (1, 3), (4, 3)]


def test_the_original_shape_works():
    def init(ring):
        first = ring.members[0]
        os.environ["WHERE"] = f"{ring.rank} {ring.size} {first.ip} {first.port}"

    def func(rank, size):
        return os.environ["WHERE"].split()

    found = Ring(2, func, init).run()

    assert [(row[0], row[1]) for row in found] == [("0", "2"), ("1", "2")]
    assert found[0][2:] == found[1][2:]


def test_the_initializer_gets_its_arguments():
    def init(ring, letter, number):
        os.environ["GOT"] = letter * number

    assert Ring(1, lambda rank, size: os.environ["GOT"], init, ("x", 3)).run() == ["xxx"]


def test_every_member_knows_itself_by_its_environment():
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"]
    names += ["MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"]

    found = Ring(2, lambda rank, size: {name: os.environ[name] for name in names}).run()

    assert [one["RANK"] for one in found] == ["0", "1"]
    assert {one["WORLD_SIZE"] for one in found} == {"2"}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found}) == 1
    assert all(one["NCCL_SOCKET_IFNAME"] == "=" + one["GLOO_SOCKET_IFNAME"] for one in found)


def test_a_job_may_have_several_ranks():
    def func(rank, size):
        return rank, size, current_ring().local_rank, os.environ["LOCAL_RANK"]

    found = Ring(2, func, slots=2).run()

    assert [one[:2] for one in found] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert all(str(one[2]) == one[3] for one in found)


def test_groups_have_resources_of_their_own():
    ring = Ring([(2, fiber.meta(slots=2)), (1, fiber.meta(cpu=0.5))], square)

    assert len(ring.run()) == 5


def test_the_port_of_a_member_is_free_for_it_alone():
    def func(rank, size):
        import socket

        me = current_ring().me
        with socket.create_server(("", me.port)) as server:
            return server.getsockname()[1] == me.port

    assert Ring(2, func).run() == [True, True]


def test_members_can_have_children():
    def func(rank, size):
        with fiber.Pool(1) as pool:
            return pool.apply(abs, (-rank,))

    assert Ring(2, func).run() == [0, 1]


def test_queues_travel_with_the_initializer():
    queue = fiber.Queue()

    Ring(2, lambda rank, size: None, lambda ring, q: q.put(ring.rank), (queue,)).run()

    assert sorted(queue.get(timeout=20) for _ in range(2)) == [0, 1]


# -- failures


def test_an_exception_is_reported_with_rank_host_and_traceback():
    def func(rank, size):
        if rank == 1:
            raise ValueError("no good")
        time.sleep(60)

    with pytest.raises(RingError, match="rank 1 on .*raised: ValueError: no good") as caught:
        Ring(3, func).run()

    assert caught.value.failure.rank == 1
    assert caught.value.failure.host
    assert 'raise ValueError("no good")' in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_exit_code_is_reported():
    def func(rank, size):
        if rank == 0:
            sys.stderr.write("last words\n")
            sys.exit(3)
        time.sleep(60)

    with pytest.raises(RingError) as caught:
        Ring(2, func).run()

    failure = caught.value.failure
    assert (failure.rank, failure.exit_code, failure.reason) == (0, 3, "EXIT(3)")
    assert "last words" in str(caught.value)


def test_a_killed_rank_is_reported_and_ends_the_others():
    def func(rank, size):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(RingError) as caught:
        Ring(2, func).run()

    assert (caught.value.failure.rank, caught.value.failure.exit_code) == (1, -9)


def test_a_dead_process_of_a_job_with_several_ranks_is_reported_by_its_rank():
    def func(rank, size):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(RingError) as caught:
        Ring(1, func, slots=2).run()

    assert caught.value.failure.rank == 1


def test_a_stopped_rank_is_given_up():
    def func(rank, size):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)

    with pytest.raises(RingError, match="LEASE: it gave no sign of life for 2 s") as caught:
        Ring(2, func, heartbeat=2.0).run()

    assert caught.value.failure.worker is not None


def test_a_result_that_cannot_be_sent_is_a_failure():
    with pytest.raises(RingError, match="rank 0 .*raised"):
        Ring(1, lambda rank, size: (x for x in ())).run()


def test_an_initializer_that_raises_is_a_failure():
    def init(ring):
        raise KeyError("nothing there")

    with pytest.raises(RingError, match="KeyError"):
        Ring(2, square, init).run()


def test_a_function_that_cannot_be_pickled_is_an_error_at_once():
    ring = Ring(2, square, lambda ring, x: None, (sys._getframe(),))

    with pytest.raises(TypeError, match="pickle"):
        ring.start()


# -- the user's hand


def test_join_gives_up_when_time_runs_out_and_terminate_ends_it():
    ring = Ring(2, lambda rank, size: time.sleep(60))
    ring.start()

    assert ring.join(0.05) is None
    ring.terminate()
    with pytest.raises(RingError, match="Terminated"):
        ring.join()


def test_a_ring_starts_once():
    ring = Ring(1, square)
    ring.run()

    with pytest.raises(fiber.FiberError, match="only be started once"):
        ring.start()


def test_a_ring_can_be_suspended_and_goes_on_from_what_was_committed():
    def func(rank, size):
        ring = current_ring()
        if ring.state is None:
            ring.commit({"step": 7}, step=7)
            time.sleep(60)
        return ring.state, ring.restarts

    ring = Ring(2, func)
    ring.start()
    assert ring.wait_for(lambda status: status.has(ConditionKind.RUNNING), 60)
    time.sleep(1)
    ring.suspend()
    assert ring.wait_for(lambda status: status.phase is RingPhase.SUSPENDED, 60)
    ring.resume()

    assert ring.join() == [({"step": 7}, 0)] * 2
    assert ring.status().has(ConditionKind.SUCCEEDED)


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


def test_after_the_last_restart_the_last_failure_is_raised():
    def func(rank, size):
        raise RuntimeError(f"restart {current_ring().restarts}")

    with pytest.raises(RingError, match="RuntimeError: restart 2"):
        Ring(1, func, max_restarts=2).run()


def test_the_deadline_ends_it():
    with pytest.raises(RingError, match="DeadlineExceeded: it was not done within 2 s"):
        Ring(1, lambda rank, size: time.sleep(60), deadline=2.0).run()


def test_members_stay_where_nothing_is_to_be_cleaned_until_the_ring_is_terminated():
    def func(rank, size):
        if rank == 0:
            raise ValueError("no good")
        time.sleep(60)

    ring = Ring(2, func, clean="none")
    with pytest.raises(RingError, match="no good"):
        ring.run()
    left = [one for one in fiber.active_children() if one.name.startswith(ring.name)]
    assert left

    ring.terminate()

    for process in left:
        process.join(30)
        assert process.exitcode is not None


def test_what_stays_goes_when_its_time_to_live_is_over():
    def func(rank, size):
        if rank == 0:
            raise ValueError("no good")
        time.sleep(60)

    ring = Ring(2, func, clean="none", ttl=1.0)
    with pytest.raises(RingError, match="no good"):
        ring.run()

    for process in fiber.active_children():
        if process.name.startswith(ring.name):
            process.join(30)
            assert process.exitcode is not None


def test_a_program_that_was_stopped_loses_no_member():
    ring = Ring(2, lambda rank, size: time.sleep(4), heartbeat=1.0)
    ring.start()
    assert ring.wait_for(lambda status: status.has(ConditionKind.RUNNING), 60)

    # as if the process had been stopped meanwhile: its thread looks at nothing
    controller = ring._controller
    with controller._lock:
        time.sleep(2)

    assert ring.join() == [None, None]


def test_an_elastic_ring_is_resized_while_it_runs():
    def func(rank, size):
        ring = current_ring()
        seen = [*(ring.state or []), size]
        ring.commit(seen, step=len(seen))
        if len(seen) < 3:
            time.sleep(60)
        return seen

    ring = Ring(3, func, min=1, max=3)
    ring.start()
    for size in (2, 3):
        before = ring.status().rounds
        assert ring.wait_for(
            lambda status, least=size - 1: (
                status.rounds == least and status.phase is RingPhase.RUNNING
            ),
            60,
        )
        time.sleep(1)
        assert before <= size - 1
        ring.resize(size)

    assert ring.join() == [[3, 2, 3]] * 3
    assert ring.status().restarts == 0


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
    def func(rank, size):
        if rank == 1:
            raise ValueError("the other one")
        time.sleep(5)

    with pytest.raises(RingError, match="the other one"):
        Ring(2, func, rank0="caller").run()


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
        ({"max_restarts": -1}, ValueError, "max_restarts"),
        ({"rank0": "caller", "max_restarts": 1}, ValueError, "cannot restart"),
    ],
)
def test_misuse_is_an_error_of_the_constructor(arguments, error, text):
    with pytest.raises(error, match=text):
        Ring(**{"processes": 2, "func": square, **arguments})
