"""The function cache of a worker."""

import numpy as np
import pytest

from fiber._tasks.worker import FunctionCache
from fiber._wire import codec, frames
from tasks_world import FakePayload

KB = 1024


def pickled(function):
    return frames.joined(codec.dumps(function))


def closure(value):
    return lambda: value


def test_a_function_is_unpickled_afresh_for_each_call():
    functions = FunctionCache()
    functions.put(b"f", pickled(closure([1])))
    assert functions.get(1) is None
    first, second = functions.load(1, b"f"), functions.load(2, b"f")
    assert functions.get(1) is first
    first().append(2)
    assert first() == [1, 2]
    assert second() == [1]


@pytest.mark.parametrize("shared", [False, True], ids=["sent", "mapped"])
def test_an_array_in_a_closure_can_be_written_to_and_no_call_sees_that_of_another(shared):
    functions, content = FunctionCache(), pickled(closure(np.zeros(10_000)))
    functions.put(b"f", FakePayload(b"place", content) if shared else content)
    first, second = functions.load(1, b"f"), functions.load(2, b"f")
    first()[:] = 7
    assert second()[0] == 0


def test_one_that_is_dropped_is_gone_and_so_is_what_was_made_of_it():
    functions = FunctionCache()
    for name in (b"f", b"g"):
        functions.put(name, pickled(closure(1)))
    functions.load(1, b"f"), functions.load(2, b"g")
    functions.forget(b"f")
    functions.forget(b"never seen")
    assert [name in functions for name in (b"f", b"g")] == [False, True]
    assert [functions.get(call) is None for call in (1, 2)] == [True, False]


def test_the_least_recently_used_function_is_dropped_first():
    functions = FunctionCache(pickled=250 * KB)
    for name in (b"a", b"b"):
        functions.put(name, pickled(closure(bytes(100 * KB))))
    functions.load(1, b"a")
    functions.put(b"c", pickled(closure(bytes(100 * KB))))
    assert [name in functions for name in (b"a", b"b", b"c")] == [True, False, True]


def test_one_that_is_larger_than_the_cache_is_kept_all_the_same():
    functions = FunctionCache(pickled=KB)
    functions.put(b"big", pickled(closure(bytes(100 * KB))))
    assert len(functions.load(1, b"big")()) == 100 * KB


def test_many_small_ones_are_bounded_too():
    functions = FunctionCache(pickled=100 * KB)
    names = [str(number).encode() for number in range(1000)]
    for name in names:
        functions.put(name, b"x")
    assert sum(name in functions for name in names) < 100


def test_sent_again_it_counts_once():
    functions = FunctionCache(pickled=250 * KB)
    functions.put(b"other", pickled(closure(bytes(100 * KB))))
    for _ in range(10):
        functions.put(b"same", pickled(closure(bytes(100 * KB))))
    assert b"other" in functions


def test_few_large_functions_stay_ready_and_many_small_ones():
    functions = FunctionCache(ready=250 * KB)
    functions.put(b"big", pickled(closure(bytes(100 * KB))))
    functions.put(b"small", pickled(closure(1)))
    for call in range(4):
        functions.load(call, b"big")
    assert functions.get(0) is None
    assert functions.get(3) is not None
    for call in range(100, 130):
        functions.load(call, b"small")
    assert all(functions.get(call) is not None for call in range(100, 130))
