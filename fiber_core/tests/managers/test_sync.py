"""Every type of ``SyncManager``, used from this process and from others."""

import queue
import sys
import threading
from collections.abc import MutableMapping, MutableSequence

import pytest

import fiber
from children import finish, start
from wire_world import in_thread

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(120),
]


def test_a_dict_has_the_methods_of_a_dict(manager):
    shared = manager.dict({"a": 1}, b=2)

    assert list(shared) == ["a", "b"] == shared.keys()
    assert shared.values() == [1, 2]
    assert shared.get("c", 3) == 3
    assert shared.pop("a") == 1
    assert shared.setdefault("d", 4) == 4
    assert shared | {"e": 5} == {"b": 2, "d": 4, "e": 5}
    assert {"e": 5} | shared == {"e": 5, "b": 2, "d": 4}
    shared |= {"f": 6}
    assert list(reversed(shared)) == ["f", "d", "b"]
    shared.clear()
    assert str(shared) == "{}"


def test_lists_and_dicts_are_the_abstract_classes_that_they_implement(manager):
    assert isinstance(manager.dict(), MutableMapping)
    assert isinstance(manager.list(), MutableSequence)


def test_a_list_has_the_methods_of_a_list(manager):
    shared = manager.list([3, 1, 2])

    shared.sort(key=lambda n: -n)
    assert shared[:] == [3, 2, 1]
    shared += [0]
    shared *= 2
    assert isinstance(shared, fiber.managers.ListProxy)
    assert len(shared) == 8
    assert shared + shared[:1] == [3, 2, 1, 0, 3, 2, 1, 0, 3]
    shared[0] = 7
    del shared[1:]
    assert list(iter(shared)) == [7]
    assert list(reversed(shared)) == [7]


def test_a_set_has_the_methods_of_a_set(manager):
    shared = manager.set([1, 2])

    shared.add(3)
    shared |= {4}
    shared -= {1}
    shared ^= {4, 5}
    assert shared.copy() == {2, 3, 5}
    shared &= {2, 3}
    assert shared & {3, 4} == {3}
    assert {9} | shared == {2, 3, 9}
    assert sorted(shared) == [2, 3]
    assert shared.issuperset({2})
    assert 3 in shared


def count(value, lock):
    for _ in range(20):
        with lock:
            value.value += 1


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
def test_a_lock_keeps_threads_and_processes_apart(manager, kind):
    value, lock = manager.Value("i", 0), getattr(manager, kind)()
    threads = [in_thread(count, value, lock) for _ in range(2)]
    finish(*(start(count, value, lock) for _ in range(2)))
    for ended in threads:
        ended()

    assert value.get() == 80
    assert str(value) == "Value('i', 80)"


def test_an_rlock_knows_the_thread_that_holds_it(manager):
    lock = manager.RLock()
    with lock, lock:
        assert in_thread(lock.acquire, False)() is False
    with pytest.raises(RuntimeError):
        lock.release()


@pytest.mark.parametrize(
    "kind, args, error", [("Lock", (), RuntimeError), ("BoundedSemaphore", (2,), ValueError)]
)
def test_one_that_is_taken_is_not_had_in_time_nor_released_too_often(manager, kind, args, error):
    lock = getattr(manager, kind)(*args)
    permits = args[0] if args else 1
    assert all(lock.acquire() for _ in range(permits))

    assert lock.acquire(False) is False
    assert lock.acquire(True, 0.01) is False
    for _ in range(permits):
        lock.release()
    with pytest.raises(error):
        lock.release()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="locked() is new in Python 3.14")
@pytest.mark.parametrize("kind", ["RLock", "Condition"])
def test_recursive_locks_and_conditions_tell_whether_they_are_held(manager, kind):
    holder = getattr(manager, kind)()
    with holder:
        assert holder.locked() is True
    assert holder.locked() is False


def set_when_noticed(condition, seen, event):
    with condition:
        condition.wait_for(lambda: len(seen) > 0, 60)
    event.set()


def test_conditions_and_events_wake_other_processes(manager):
    condition, seen, event = manager.Condition(), manager.list(), manager.Event()
    process = start(set_when_noticed, condition, seen, event)
    assert not event.wait(0.01)
    with condition:
        seen.append(1)
        condition.notify_all()

    assert event.wait(60)
    finish(process)
    event.clear()
    assert not event.is_set()
    with condition:
        assert condition.wait(0.01) is False
        assert not condition.wait_for(lambda: 0, 0.01)
        condition.notify()


def test_a_condition_may_have_a_lock_of_the_manager(manager):
    lock = manager.Lock()
    condition = manager.Condition(lock)
    with condition:
        assert lock.acquire(False) is False
    assert lock.acquire(False)
    lock.release()


def meet(barrier, numbers):
    numbers.append(barrier.wait(60))


def test_a_barrier_lets_all_parties_go_at_once(manager):
    barrier, numbers = manager.Barrier(3), manager.list()
    threads = [in_thread(meet, barrier, numbers) for _ in range(2)]
    finish(start(meet, barrier, numbers))
    for ended in threads:
        ended()

    assert sorted(numbers) == [0, 1, 2]
    assert (barrier.parties, barrier.n_waiting, barrier.broken) == (3, 0, False)
    barrier.abort()
    assert barrier.broken
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait()
    barrier.reset()
    assert not barrier.broken


def feed(tasks, results):
    while (number := tasks.get()) is not None:
        results.put(number * number)
        tasks.task_done()
    tasks.task_done()


def test_a_queue_joins_and_limits(manager):
    tasks, results = manager.JoinableQueue(), manager.Queue(5)
    process = start(feed, tasks, results)
    for number in (1, 2, 3, None):
        tasks.put(number)
    tasks.join()
    finish(process)

    assert [results.get() for _ in range(3)] == [1, 4, 9]
    with pytest.raises(queue.Empty):
        results.get_nowait()
    for _ in range(5):
        results.put(0, timeout=1)
    assert results.full()
    with pytest.raises(queue.Full):
        results.put(0, timeout=0.01)


def test_a_pool_in_the_manager_works(manager):
    with manager.Pool(2) as pool:
        result = pool.apply_async(abs, (-3,))
        assert result.get(60) == 3
        assert result.ready()
        assert result.successful()
        assert list(pool.imap(abs, [-4, -5])) == [4, 5]
        with pytest.raises(ZeroDivisionError):
            pool.apply(divmod, (1, 0))


def test_proxies_and_queues_of_fiber_travel_through_queues_and_dicts(manager):
    inner, ours = manager.Queue(), fiber.Queue()
    inner.put(manager.dict(queue=ours))
    ours.put(manager.list([1]))

    assert list(inner.get()["queue"].get()) == [1]


def countdown():
    left = 3
    while left:
        left = (yield left) or left - 1


class Generators(fiber.managers.BaseManager):
    """A manager of generators."""


Generators.register("countdown", countdown, proxytype=fiber.managers.IteratorProxy)


def test_a_generator_is_resumed_with_values_and_exceptions_and_ended():
    with Generators() as manager:
        numbers = manager.countdown()
        assert [next(numbers), numbers.send(9), next(numbers)] == [3, 9, 8]
        with pytest.raises(KeyError):
            numbers.throw(KeyError("k"))
        numbers = manager.countdown()
        numbers.close()
        assert list(numbers) == []


def test_attributes_of_a_namespace_are_deleted_and_those_of_its_proxy_are_its_own(manager):
    space = manager.Namespace(a=1, b="x")
    del space.a
    assert not hasattr(space, "a")
    with pytest.raises(AttributeError):
        del space._a
