"""Devices are granted in the order in which they were asked for, and to one run of a host at a time."""

import contextlib
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.supervisor.devices import DeviceQueue, HostAccount, granted_variable
from fiber._wire.descriptors import Descriptors
from fiber.exceptions import ResourceError
from fiber.model import Device


def devices(kind, count):
    return [Device(kind=kind, id=f"{kind}{i}", index=i) for i in range(count)]


@pytest.fixture
def queue():
    queue = DeviceQueue()
    queue.offer([*devices("gpu", 2), *devices("tpu", 1)], {"gpu": b"G", "tpu": b"T"})
    return queue


def ids(allocation):
    return [device.id for device in allocation.devices]


@pytest.mark.parametrize(
    "released, granted",
    [(["a", "big"], [["big"], ["small", "last"]]), (["big"], [["small"]])],
    ids=["big one has its turn", "big one gives up"],
)
def test_a_small_job_does_not_overtake_a_big_one(queue, released, granted):
    queue.request("a", {"gpu": 1})
    assert queue.request("big", {"gpu": 2}) is None
    assert queue.request("small", {"gpu": 1}) is None
    assert queue.request("last", {"gpu": 1}) is None
    assert queue.reason("last").endswith(", held by a; others wait before it")

    assert [[a.job_id for a in queue.release(job)] for job in released] == granted


def test_a_job_that_waits_is_told_who_has_what_it_waits_for(queue):
    queue.offer(devices("npu", 5), {"npu": b"N"})
    queue.request("a", {"npu": 1}, "trainer")
    queue.request("b", {"gpu": 2}, "of another kind")
    for number in range(4):
        queue.request(str(number), {"npu": 1}, f"PoolWorker-{number}")
    queue.request("late", {"npu": 2})

    told = "waits for 2 npu, free now: 0 npu, held by "
    assert queue.reason("late") == f"{told}trainer, PoolWorker-0, PoolWorker-1 and 2 more"
    queue.release("0")
    assert queue.waiting() == ("late",)
    assert "1 npu, held by trainer, PoolWorker-1, PoolWorker-2 and " in queue.reason("late")


def test_a_job_that_needs_another_kind_goes_ahead(queue):
    queue.request("a", {"gpu": 2})
    queue.request("b", {"gpu": 1})

    assert ids(queue.request("c", {"tpu": 1})) == ["tpu0"]


def test_grants_name_the_provider_of_each_kind(queue):
    allocation = queue.request("a", {"gpu": 2, "tpu": 1})

    assert queue.grants(allocation) == (
        (b"G", allocation.of_kind("gpu")),
        (b"T", allocation.of_kind("tpu")),
    )


def test_a_kind_is_learnt_once_and_others_later(queue):
    held = queue.request("a", {"gpu": 1})
    queue.offer([*devices("gpu", 8), *devices("fpga", 1)], {"gpu": b"other", "fpga": b"F"})

    assert queue.free() == {"gpu": 1, "tpu": 1, "fpga": 1}
    assert queue.grants(held)[0][0] == b"G"


def test_a_kind_is_known_once_it_was_offered_even_without_devices(queue):
    assert queue.unknown({"gpu": 1, "fpga": 1, "npu": 2}) == ["fpga", "npu"]
    queue.offer([], {"npu": b"N"})

    assert queue.unknown({"npu": 1}) == []
    with pytest.raises(ResourceError, match="has 0"):
        queue.request("a", {"npu": 1})


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(0, 2)), max_size=60))
def test_no_device_is_ever_held_twice_and_all_come_back(steps):
    queue = DeviceQueue()
    queue.offer([*devices("a", 3), *devices("b", 2)], {"a": b"", "b": b""})
    held, waiting = {}, set()

    def release(job):
        held.pop(job, None)
        waiting.discard(job)
        for allocation in queue.release(job):
            assert allocation.job_id in waiting
            waiting.remove(allocation.job_id)
            held[allocation.job_id] = set(ids(allocation))

    for job, first, second in steps:
        if job in held or job in waiting:
            release(job)
            continue
        counts = {k: n for k, n in (("a", first), ("b", second)) if n}
        allocation = queue.request(job, counts)
        if allocation is None:
            waiting.add(job)
        else:
            held[job] = set(ids(allocation))
        taken = [device for mine in held.values() for device in mine]
        assert len(taken) == len(set(taken))
    for job in [*held, *waiting]:
        release(job)
    assert queue.free() == {"a": 3, "b": 2}
    assert not waiting


@pytest.fixture
def run(tmp_path):
    """Makes the queue of a run with two devices; the run ends where the descriptors are closed."""
    with contextlib.ExitStack() as stack:

        def begin(name, root=tmp_path, environ=(), count=2):
            descriptors = Descriptors()
            stack.callback(descriptors.close_all)
            (root / name).mkdir()
            account = HostAccount(
                str(root / name), f"run {name}", descriptors=descriptors, environ=dict(environ)
            )
            queue = DeviceQueue(account)
            queue.offer(devices("gpu", count), {"gpu": b"G"})
            return queue, descriptors

        yield begin


def test_of_two_runs_each_gets_what_the_other_does_not_hold(run):
    (one, _), (other, _) = run("one"), run("other")
    assert ids(one.request("a", {"gpu": 1})) == ["gpu0"]
    assert ids(other.request("b", {"gpu": 1})) == ["gpu1"]
    assert other.request("c", {"gpu": 1}) is None
    assert other.reason("c") == "waits for 1 gpu, free now: 0 gpu, held by b and run one"
    assert other.awaits_others
    assert other.grant_waiting() == []

    one.release("a")
    assert [ids(allocation) for allocation in other.grant_waiting()] == [["gpu0"]]
    assert not other.awaits_others


def test_a_job_that_cannot_get_all_holds_none_meanwhile(run):
    (one, _), (other, _) = run("one"), run("other")
    one.offer(devices("npu", 1), {"npu": b"N"})
    other.offer(devices("npu", 1), {"npu": b"N"})
    one.request("a", {"npu": 1})
    assert other.request("b", {"gpu": 2, "npu": 1}) is None

    assert ids(one.request("c", {"gpu": 2})) == ["gpu0", "gpu1"]


def test_devices_of_a_run_that_died_are_free(run):
    (one, descriptors), (other, _) = run("one"), run("other")
    one.request("a", {"gpu": 2})
    assert other.request("b", {"gpu": 2}) is None

    descriptors.close_all()
    assert [ids(allocation) for allocation in other.grant_waiting()] == [["gpu0", "gpu1"]]


def test_runs_inside_a_job_share_what_the_job_was_granted(run, tmp_path):
    (outer, _), (stranger, _) = run("outer"), run("stranger")
    granted = outer.request("a", {"gpu": 1})
    environ = granted_variable(f"{tmp_path}/outer", "a", granted.devices)
    inner, _ = run("inner", environ=environ.items(), count=1)
    second, _ = run("second", environ=environ.items(), count=1)

    assert ids(inner.request("b", {"gpu": 1})) == ["gpu0"]
    assert second.request("c", {"gpu": 1}) is None
    assert stranger.request("d", {"gpu": 2}) is None

    # the job has outlived its run, whose devices are anybody's
    shutil.rmtree(tmp_path / "outer")
    inner.release("b")
    assert inner.request("e", {"gpu": 1}) is None
    assert inner.reason("e").endswith("held by run outer")


def test_where_no_account_can_be_kept_a_run_grants_as_if_it_were_alone(run, tmp_path):
    one, _ = run("one")
    (tmp_path / "device-gpu-gpu0.lock").mkdir()

    assert ids(one.request("a", {"gpu": 2})) == ["gpu0", "gpu1"]
