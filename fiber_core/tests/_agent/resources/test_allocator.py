import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fiber._agent.resources.allocator import Allocator
from fiber.exceptions import ResourceError
from fiber.model import Allocation, Device


def gpus(count, kind="gpu"):
    return [Device(kind=kind, id=f"{kind}-{index}", index=index) for index in range(count)]


def ids(allocation):
    return [device.id for device in allocation.devices]


def test_the_lowest_free_indices_are_granted():
    allocator = Allocator(reversed(gpus(4)))

    assert ids(allocator.allocate("a", {"gpu": 2})) == ["gpu-0", "gpu-1"]
    assert ids(allocator.allocate("b", {"gpu": 1})) == ["gpu-2"]
    allocator.release("a")
    assert ids(allocator.allocate("c", {"gpu": 1})) == ["gpu-0"]


def test_devices_are_ordered_by_kind_and_index():
    allocator = Allocator([*gpus(1, "tpu"), *gpus(2)])

    allocation = allocator.allocate("a", {"tpu": 1, "gpu": 2})

    assert ids(allocation) == ["gpu-0", "gpu-1", "tpu-0"]
    assert ids(Allocation(job_id="a", devices=allocation.of_kind("tpu"))) == ["tpu-0"]


@pytest.mark.parametrize("counts", [{}, {"gpu": 0}, {"tpu": 0}])
def test_asking_for_nothing_is_always_granted(counts):
    assert Allocator([]).allocate("a", counts) == Allocation(job_id="a")


@pytest.mark.parametrize(
    "counts, words",
    [
        ({"gpu": 3}, "'a' asks for 3 of 'gpu' and this host has 2"),
        ({"gpu": 1, "tpu": 1}, "asks for 1 of 'tpu' and this host has 0"),
        ({"gpu": -1}, "-1 devices of kind 'gpu'"),
    ],
)
def test_what_can_never_be_granted_is_an_error_and_grants_nothing(counts, words):
    allocator = Allocator(gpus(2))

    with pytest.raises((ResourceError, ValueError), match=words):
        allocator.allocate("a", counts)

    assert allocator.free() == {"gpu": 2}


def test_a_device_that_is_listed_twice_is_refused():
    with pytest.raises(ResourceError, match="'gpu-0' of kind 'gpu' is listed twice"):
        Allocator([*gpus(1), *gpus(1)])


def test_parts_of_one_device_that_share_its_index_are_granted_one_by_one():
    parts = [Device(kind="gpu", id=f"MIG-{name}", index=0) for name in "ba"]
    allocator = Allocator(parts)

    assert ids(allocator.allocate("x", {"gpu": 1})) == ["MIG-a"]
    assert ids(allocator.allocate("y", {"gpu": 1})) == ["MIG-b"]


class AnyOrderOfCalls(RuleBasedStateMachine):
    """A device is never granted twice, and all are free once all are released."""

    def __init__(self):
        super().__init__()
        self.totals = {"gpu": 4, "tpu": 2}
        self.allocator = Allocator([d for k, n in self.totals.items() for d in gpus(n, k)])
        self.held = {}

    @rule(job=st.sampled_from("abcdef"), gpu=st.integers(0, 5), tpu=st.integers(0, 3))
    def ask(self, job, gpu, tpu):
        counts = {"gpu": gpu, "tpu": tpu}
        if job in self.held:
            with pytest.raises(ValueError, match=f"'{job}' already holds devices"):
                self.allocator.allocate(job, counts)
        elif any(counts[kind] > total for kind, total in self.totals.items()):
            with pytest.raises(ResourceError):
                self.allocator.allocate(job, counts)
        else:
            before = self.allocator.free()
            allocation = self.allocator.allocate(job, counts)
            fits = all(counts[kind] <= before[kind] for kind in counts)
            assert (allocation is not None) == fits
            assert fits or self.allocator.free() == before
            if allocation is not None:
                assert {k: len(allocation.of_kind(k)) for k in counts} == counts
                self.held[job] = allocation

    @rule(job=st.sampled_from("abcdef"))
    def give_back(self, job):
        self.allocator.release(job)
        self.held.pop(job, None)

    @invariant()
    def no_device_is_held_twice(self):
        granted = [device.id for allocation in self.held.values() for device in allocation.devices]
        assert len(granted) == len(set(granted))

    @invariant()
    def what_is_free_and_what_is_held_are_all(self):
        held = {k: sum(len(a.of_kind(k)) for a in self.held.values()) for k in self.totals}
        free = self.allocator.free()
        assert {kind: free[kind] + held[kind] for kind in free} == self.totals

    def teardown(self):
        for job in list(self.held):
            self.allocator.release(job)
        assert self.allocator.free() == self.totals


TestAnyOrderOfCalls = AnyOrderOfCalls.TestCase
TestAnyOrderOfCalls.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
