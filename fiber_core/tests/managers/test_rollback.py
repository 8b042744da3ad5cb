"""Rollback of methods whose callers died."""

import queue
import threading

import pytest

from fiber.managers.server import rollback


def test_an_item_goes_back_to_the_front_and_is_still_to_be_done():
    tasks = queue.Queue()
    tasks.put(1)
    tasks.put(2)
    rollback(tasks, "get", tasks.get())

    assert [tasks.get(), tasks.get()] == [1, 2]
    assert tasks.unfinished_tasks == 2


@pytest.mark.parametrize(
    "make", [threading.Lock, threading.RLock, threading.Condition, threading.Semaphore]
)
def test_a_lock_is_released_where_it_was_had(make):
    lock = make()
    rollback(lock, "acquire", lock.acquire())

    taken = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(False)))
    thread.start()
    thread.join(20)
    assert taken == [True]


def test_one_that_was_not_had_is_left_alone():
    lock = threading.Lock()
    lock.acquire()
    rollback(lock, "acquire", False)

    assert lock.locked()


def test_a_condition_is_released_after_a_wait_in_vain_too():
    condition = threading.Condition()
    condition.acquire()
    rollback(condition, "wait", condition.wait(0.001))

    with pytest.raises(RuntimeError):
        condition.release()


@pytest.mark.parametrize("obj", [{}, threading.Event(), queue.LifoQueue(), object()])
def test_other_objects_are_left_alone(obj):
    rollback(obj, "get", 1)
    rollback(obj, "acquire", True)
