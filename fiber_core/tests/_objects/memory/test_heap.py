"""Where blocks are."""

from pathlib import Path

import pytest

from fiber._objects.memory.block import Heap


@pytest.fixture
def heap(tmp_path):
    return Heap(lambda: tmp_path, "maker")


def test_small_blocks_are_side_by_side_and_do_not_touch(heap):
    blocks = [heap.take(size) for size in (1, 64, 65, 0, 8)]
    assert len({block.arena for block in blocks}) == 1
    for number, block in enumerate(blocks, 1):
        block.view[:] = bytes([number]) * block.size
    assert [bytes(block.view) for block in blocks] == [
        bytes([number]) * block.size for number, block in enumerate(blocks, 1)
    ]
    assert all(block.begin % 64 == 0 for block in blocks)


def test_a_block_is_all_zeros_whatever_was_there_before(heap):
    first = heap.take(100)
    first.view[:] = b"x" * 100
    heap.give(first)
    again = heap.take(100)
    assert again.begin == first.begin
    assert bytes(again.view) == bytes(100)


def test_a_large_block_is_by_itself_and_goes_when_it_is_given_back(heap):
    large = heap.take(10**6)
    assert heap.take(10).arena is not large.arena
    heap.give(large)
    assert not large.arena._closing.alive


def test_arenas_go_with_their_last_block_but_one_is_kept(heap):
    blocks = [heap.take(2**15) for _ in range(20)]
    arenas = {block.arena for block in blocks}
    assert len(arenas) == 3
    for block in blocks:
        heap.give(block)
    assert sum(one._closing.alive for one in arenas) == 1


def test_many_small_blocks_take_few_descriptors(heap):
    before = len(list(Path("/dev/fd").iterdir()))
    blocks = [heap.take(8) for _ in range(3000)]
    assert len(list(Path("/dev/fd").iterdir())) - before <= 4
    assert len(blocks) == 3000
