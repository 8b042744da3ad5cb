"""What a worker keeps of the functions that it was sent."""

import numpy as np

from fiber._tasks.worker import Functions
from fiber._wire import codec, frames
from tasks_world import FakeLaid

KB = 1024


def pickled(function):
    return frames.joined(codec.dumps(function))


def closure(value):
    return lambda: value


def test_a_function_is_unpickled_afresh_for_each_call():
    functions = Functions()
    functions.learn(b"f", pickled(closure([1])))
    first, second = functions.load(1, b"f"), functions.load(2, b"f")
    first().append(2)
    assert first() == [1, 2]
    assert second() == [1]


def test_within_a_call_it_is_the_same():
    functions = Functions()
    functions.learn(b"f", pickled(closure(1)))
    assert functions.of_call(1) is None
    assert functions.load(1, b"f") is functions.of_call(1)


def test_an_array_in_a_closure_can_be_written_to_and_no_call_sees_that_of_another():
    functions = Functions()
    functions.learn(b"f", pickled(closure(np.zeros(10_000))))
    first, second = functions.load(1, b"f"), functions.load(2, b"f")
    first()[:] = 7
    assert second()[0] == 0


def test_of_one_that_is_laid_each_call_gets_a_copy_too():
    functions = Functions()
    functions.learn(b"f", FakeLaid(b"place", pickled(closure(np.zeros(10_000)))))
    first, second = functions.load(1, b"f"), functions.load(2, b"f")
    first()[:] = 7
    assert second()[0] == 0


def test_one_that_is_dropped_is_gone_and_so_is_what_was_made_of_it():
    functions = Functions()
    for name in (b"f", b"g"):
        functions.learn(name, pickled(closure(1)))
    functions.load(1, b"f"), functions.load(2, b"g")
    functions.forget(b"f")
    functions.forget(b"never seen")
    assert [name in functions for name in (b"f", b"g")] == [False, True]
    assert [functions.of_call(call) is None for call in (1, 2)] == [True, False]


def test_the_least_recently_used_function_is_dropped_first():
    functions = Functions(pickled=250 * KB)
    for name in (b"a", b"b"):
        functions.learn(name, pickled(closure(bytes(100 * KB))))
    functions.load(1, b"a")
    functions.learn(b"c", pickled(closure(bytes(100 * KB))))
    assert [name in functions for name in (b"a", b"b", b"c")] == [True, False, True]


def test_one_that_is_larger_than_the_cache_is_kept_all_the_same():
    functions = Functions(pickled=KB)
    functions.learn(b"big", pickled(closure(bytes(100 * KB))))
    assert b"big" in functions
    assert len(functions.load(1, b"big")()) == 100 * KB


def test_many_small_ones_are_bounded_too():
    functions = Functions(pickled=100 * KB)
    names = [str(number).encode() for number in range(1000)]
    for name in names:
        functions.learn(name, b"x")
    assert sum(name in functions for name in names) < 100


def test_sent_again_it_counts_once():
    functions = Functions(pickled=250 * KB)
    functions.learn(b"other", pickled(closure(bytes(100 * KB))))
    for _ in range(10):
        functions.learn(b"same", pickled(closure(bytes(100 * KB))))
    assert b"other" in functions


def test_few_large_functions_stay_ready_and_many_small_ones():
    functions = Functions(ready=250 * KB)
    functions.learn(b"big", pickled(closure(bytes(100 * KB))))
    functions.learn(b"small", pickled(closure(1)))
    for call in range(4):
        functions.load(call, b"big")
    assert functions.of_call(0) is None
    assert functions.of_call(3) is not None
    for call in range(100, 130):
        functions.load(call, b"small")
    assert all(functions.of_call(call) is not None for call in range(100, 130))


def test_calls_can_be_forgotten_without_the_pickles():
    functions = Functions()
    functions.learn(b"f", pickled(closure(1)))
    functions.load(1, b"f")
    functions.forget_calls()
    assert functions.of_call(1) is None
    assert b"f" in functions
