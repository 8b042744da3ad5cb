"""Allocations of a process: side by side in arenas, large ones by themselves."""

from pathlib import Path

import pytest

from fiber._objects.memory.heap import Heap


@pytest.fixture
def heap(tmp_path):
    return Heap(lambda: tmp_path, "maker")


def test_small_allocations_are_side_by_side_and_do_not_touch(heap):
    allocations = [heap.allocate(size) for size in (1, 64, 65, 0, 8)]
    assert len({allocation.arena for allocation in allocations}) == 1
    for number, allocation in enumerate(allocations, 1):
        allocation.view[:] = bytes([number]) * allocation.size
    assert [bytes(allocation.view) for allocation in allocations] == [
        bytes([number]) * allocation.size for number, allocation in enumerate(allocations, 1)
    ]
    assert all(allocation.begin % 64 == 0 for allocation in allocations)


def test_an_allocation_is_all_zeros_whatever_was_there_before(heap):
    first = heap.allocate(100)
    first.view[:] = b"x" * 100
    heap.free(first)
    again = heap.allocate(100)
    assert again.begin == first.begin
    assert bytes(again.view) == bytes(100)


def test_a_large_allocation_has_an_arena_that_is_closed_when_it_is_freed(heap):
    large = heap.allocate(10**6)
    assert heap.allocate(10).arena is not large.arena
    heap.free(large)
    assert not large.arena._closing.alive


def test_arenas_go_with_their_last_allocation_but_one_is_kept(heap):
    allocations = [heap.allocate(2**15) for _ in range(20)]
    arenas = {allocation.arena for allocation in allocations}
    assert len(arenas) == 3
    for allocation in allocations:
        heap.free(allocation)
    assert sum(one._closing.alive for one in arenas) == 1


def test_many_small_allocations_take_few_descriptors(heap):
    before = len(list(Path("/dev/fd").iterdir()))
    allocations = [heap.allocate(8) for _ in range(3000)]
    assert len(list(Path("/dev/fd").iterdir())) - before <= 4
    assert len(allocations) == 3000
