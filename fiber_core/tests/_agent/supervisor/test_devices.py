"""Devices are granted in the order in which they were asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.supervisor.devices import DeviceQueue
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
