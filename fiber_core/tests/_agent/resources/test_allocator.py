import pytest

from fiber._agent.resources import Allocator
from fiber.exceptions import ResourceError
from fiber.model import Allocation, Device


def gpus(count):
    return [Device(kind="gpu", id=f"gpu-{index}", index=index) for index in range(count)]


def ids(allocation):
    return [device.id for device in allocation.devices]


def test_the_lowest_free_indices_are_granted():
    allocator = Allocator(reversed(gpus(4)))

    assert ids(allocator.allocate("a", {"gpu": 2})) == ["gpu-0", "gpu-1"]
    assert ids(allocator.allocate("b", {"gpu": 1})) == ["gpu-2"]
    allocator.release("a")
    assert ids(allocator.allocate("c", {"gpu": 1})) == ["gpu-0"]


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


def test_a_job_that_has_devices_is_granted_no_others_before_it_releases_them():
    allocator = Allocator(gpus(2))
    allocator.allocate("a", {"gpu": 1})

    with pytest.raises(ValueError, match="'a' already holds devices; release them first"):
        allocator.allocate("a", {"gpu": 1})

    assert allocator.free() == {"gpu": 1}


def test_a_device_that_is_listed_twice_is_refused():
    with pytest.raises(ResourceError, match="'gpu-0' of kind 'gpu' is listed twice"):
        Allocator([*gpus(1), *gpus(1)])


def test_parts_of_one_device_that_share_its_index_are_granted_one_by_one():
    parts = [Device(kind="gpu", id=f"MIG-{name}", index=0) for name in "ba"]
    allocator = Allocator(parts)

    assert ids(allocator.allocate("x", {"gpu": 1})) == ["MIG-a"]
    assert ids(allocator.allocate("y", {"gpu": 1})) == ["MIG-b"]
