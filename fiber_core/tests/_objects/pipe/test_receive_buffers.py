"""Memory for large arrays: used again once nothing refers to it, and not before."""

import mmap

import pytest

from fiber._agent import cgroups
from fiber._objects.pipe import receive_buffers
from fiber._objects.pipe.receive_buffers import LEAST, allocate


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    kept = []
    monkeypatch.setattr(receive_buffers, "_kept", kept)
    receive_buffers._most_kept_size.cache_clear()
    yield kept
    receive_buffers._most_kept_size.cache_clear()
    assert not receive_buffers._lent


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, LEAST + 1, 17 * LEAST])
def test_it_has_the_size_that_was_asked_for_and_can_be_written(size):
    with allocate(size) as view:
        view[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert len(view) == size
        assert view.format == "B"


def test_it_is_used_again_once_no_view_of_it_is_left(kept):
    first = allocate(2 * LEAST)
    first[:] = b"a" * (2 * LEAST)
    part = memoryview(first)[10:20]
    del first
    second = allocate(2 * LEAST)
    second[:] = b"b" * (2 * LEAST)
    assert bytes(part) == b"a" * 10
    assert not kept
    del part
    (free,) = kept
    third = allocate(2 * LEAST - 1)
    assert not kept
    third[0] = 7
    assert free[0] == 7
    del second, third
    assert len(kept) == 2


def test_it_is_not_used_for_what_is_much_smaller_or_larger(kept):
    del (view := [allocate(2 * LEAST)])[0]
    assert not view
    (free,) = kept
    views = [allocate(LEAST), allocate(3 * LEAST)]
    assert kept == [free]
    del views


def test_no_more_is_kept_than_a_limit_the_last_that_was_used(kept, monkeypatch):
    monkeypatch.setattr(receive_buffers, "_KEPT_SIZE", 5 * LEAST)
    monkeypatch.setattr(receive_buffers, "_MOST_KEPT_SIZE", 0)
    views = [allocate(number * LEAST) for number in (1, 2, 3, 6)]
    while views:
        del views[0]
    # the last one is more than the limit for itself, so that nothing is left
    assert kept == []
    views = [allocate(number * LEAST) for number in (1, 2, 3)]
    while views:
        del views[0]
    assert list(map(len, kept)) == [2 * LEAST, 3 * LEAST]
    monkeypatch.setattr(receive_buffers, "_MOST_KEPT", 1)
    del (views := [allocate(LEAST)])[0]
    assert list(map(len, kept)) == [LEAST]


@pytest.mark.parametrize("total, most", [(2**10, 64), (6 * 2**10, 96), (2**20, 256)])
def test_more_is_kept_where_there_is_much_memory(monkeypatch, total, most):
    monkeypatch.setattr(cgroups, "memory_total", lambda: total)
    assert not receive_buffers.is_too_much(most * 2**20)
    assert receive_buffers.is_too_much(most * 2**20 + 1)


def test_where_nothing_can_be_mapped_it_is_the_c_librarys(kept, monkeypatch):
    def fail(*arguments, **options):
        raise OSError

    monkeypatch.setattr(mmap, "mmap", fail)
    view = allocate(LEAST)
    view[:] = b"a" * LEAST
    assert isinstance(view.obj, bytearray)
