"""Values that are made once and read by many, as users have them."""

import copy
import gc
import os
import pickle
import threading

import attrs
import numpy as np
import pytest

import fiber
from children import PATIENCE, be_elsewhere, finish, start
from open_memory import open_memory
from wire_world import until

pytestmark = pytest.mark.usefixtures("shared_runtime")


@attrs.define
class Model:
    weights: np.ndarray
    name: str


def tell(handle, outbox):
    value = handle.value
    outbox.put((float(value.sum()), value.flags.writeable, handle.value is value, os.getpid()))


def tell_from_elsewhere(inbox, outbox):
    be_elsewhere()
    tell(inbox.get(), outbox)


def total(handle, factor):
    return float(handle.value.sum()) * factor


class Kept:
    handle = None

    @classmethod
    def keep(cls, handle):
        cls.handle = handle

    @classmethod
    def total(cls, factor):
        return total(cls.handle, factor)


def test_an_array_is_a_view_that_cannot_be_written_to_and_outlives_its_handle():
    array = np.arange(100_000.0)
    handle = fiber.shared(array)
    array[0] = 7
    value = handle.value
    assert value is handle.value
    assert copy.copy(handle) is copy.deepcopy(handle) is handle
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        value.setflags(write=True)
    assert array.nbytes <= handle.nbytes < array.nbytes + 1000
    assert repr(handle) == f"<Shared value of {handle.nbytes} bytes>"
    del handle
    gc.collect()
    assert (value[0], value[-1]) == (0, 99_999)


@pytest.mark.parametrize("target", [tell, tell_from_elsewhere])
def test_processes_read_it_wherever_they_are(target):
    handle = fiber.shared(np.ones(300_000))
    inbox, outbox = fiber.SimpleQueue(), fiber.SimpleQueue()
    args = (handle, outbox) if target is tell else (inbox, outbox)
    children = [start(target, *args) for _ in range(3)]
    for _ in children:
        inbox.put(handle)
    told = [outbox.get() for _ in children]
    assert {one[:3] for one in told} == {(300_000.0, False, True)}
    assert {one[3] for one in told} == {child.pid for child in children}
    finish(*children)


def test_it_goes_by_arguments_closures_initializers_queues_and_managers():
    handle = fiber.shared(np.ones(10))
    with fiber.Pool(2, initializer=Kept.keep, initargs=(handle,)) as pool:
        assert pool.starmap(total, [(handle, 1), (handle, 2)]) == [10, 20]
        assert pool.map(lambda factor: total(handle, factor), [3, 4]) == [30, 40]
        assert pool.map(Kept.total, [5, 6]) == [50, 60]
        made = pool.apply(fiber.shared, (Model(np.ones(3), "m"),))
        assert (made.value.name, made.value.weights.flags.writeable) == ("m", False)
    with fiber.Manager() as manager:
        found = manager.list([handle])[0]
        assert found.value is handle.value


def test_what_cannot_be_shared_is_an_error_and_leaves_nothing():
    gc.collect()
    before = open_memory()
    with pytest.raises(pickle.PicklingError, match="a lock cannot be shared"):
        fiber.shared(threading.Lock())
    huge = np.broadcast_to(np.zeros(1), (2**47,))
    with pytest.raises((OSError, pickle.PicklingError), match=r"no room|cannot be pickled"):
        fiber.shared(huge)
    gc.collect()
    # what earlier tests held may have gone meanwhile
    assert open_memory() <= before


def test_one_value_may_hold_another():
    inner = fiber.shared(np.ones(10))
    outer = fiber.shared({"inner": inner})
    del inner
    gc.collect()
    with fiber.Pool(1) as pool:
        assert pool.apply(lambda outer: outer.value["inner"].value.sum(), (outer,)) == 10
    before = open_memory()
    del outer
    until(lambda: open_memory() < before, timeout=PATIENCE)


def test_a_worker_lets_go_of_what_it_returned():
    with fiber.Pool(1) as pool:
        before = pool.apply(open_memory)
        found = [pool.apply(fiber.shared, (np.full(10, float(n)),)) for n in range(3)]
        assert [handle.value[0] for handle in found] == [0, 1, 2]
        assert pool.apply(open_memory) > before
        found.clear()
        until(lambda: pool.apply(open_memory) == before, timeout=PATIENCE)


def test_what_a_task_of_an_executor_was_given_is_freed_when_it_is_done():
    with fiber.Executor(1) as executor:
        executor.submit(os.getpid).result()
        before = open_memory()
        for n in range(3):
            handle = fiber.shared(np.full(10, float(n)))
            assert executor.submit(total, handle, 1).result() == 10 * n
            del handle
        until(lambda: open_memory() == before, timeout=PATIENCE)


def test_a_maker_that_ends_waits_until_its_value_is_where_it_went():
    outbox = fiber.SimpleQueue()
    child = start(lambda: outbox.put(fiber.shared(np.full(1000, 2.0))))
    handle = outbox.get()
    finish(child)
    assert handle.value.sum() == 2000
