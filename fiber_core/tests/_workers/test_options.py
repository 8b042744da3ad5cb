"""Sizes, chunks and initializers are checked before anything starts."""

from types import SimpleNamespace

import pytest

from fiber._workers.options import require_callable, require_positive, resolve_chunksize, sizes

MACHINE = SimpleNamespace(cpu_count=lambda: 4)


@pytest.mark.parametrize(
    "processes,min_size,max_size,expected",
    [
        (None, None, None, (4, 4, 4)),
        (2, None, None, (2, 2, 2)),
        (2, 1, 8, (2, 1, 8)),
        (None, 2, 8, (2, 2, 8)),
        (None, None, 2, (2, 2, 2)),
        (None, None, 8, (4, 4, 8)),
        (6, 1, None, (6, 1, 6)),
    ],
)
def test_sizes_are_those_given_or_the_machines(processes, min_size, max_size, expected):
    assert sizes(MACHINE, processes, min_size, max_size) == expected


@pytest.mark.parametrize("processes", [0, -1])
def test_a_pool_has_at_least_one_process(processes):
    with pytest.raises(ValueError, match="at least 1"):
        sizes(MACHINE, processes, None, None)


@pytest.mark.parametrize("processes", [2.5, "2"])
def test_a_number_of_processes_is_whole(processes):
    with pytest.raises(TypeError):
        sizes(MACHINE, processes, None, None)


@pytest.mark.parametrize("sizes_", [(2, 3, None), (2, None, 1), (None, 3, 2), (4, 1, 3)])
def test_sizes_that_contradict_each_other_are_refused(sizes_):
    with pytest.raises(ValueError, match="is not between"):
        sizes(MACHINE, *sizes_)


@pytest.mark.parametrize("min_size,max_size", [(0, None), (None, 0), (1.5, None)])
def test_limits_of_the_size_are_positive(min_size, max_size):
    with pytest.raises(ValueError, match="must be a positive int"):
        sizes(MACHINE, 2, min_size, max_size)


def test_chunks_are_of_one_item_at_least():
    assert resolve_chunksize(None) == resolve_chunksize(1) == 1
    assert resolve_chunksize(7) == 7
    for wrong in (0, -3):
        with pytest.raises(ValueError, match=r"Chunksize must be 1\+"):
            resolve_chunksize(wrong)


def test_an_initializer_can_be_called():
    require_callable(None)
    require_callable(print)
    with pytest.raises(TypeError, match="initializer must be a callable"):
        require_callable("print")


def test_limits_are_positive_whole_numbers():
    require_positive("x", None)
    require_positive("x", 3)
    for wrong in (0, -1, 1.5, "3"):
        with pytest.raises(ValueError, match="x must be a positive int or None"):
            require_positive("x", wrong)
