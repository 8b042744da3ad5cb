"""Futures and the calls they belong to, with workers played by the tests."""

import concurrent.futures
import threading
from concurrent.futures import CancelledError

import pytest

from fiber._tasks.protocol import Mode
from fiber.executor import ExecutorCall
from pool_tasks import same
from tasks_world import PlayedGroups


@pytest.fixture
def force():
    force = PlayedGroups()
    yield force
    force.callbacks.close()


@pytest.fixture
def call(force):
    return ExecutorCall(force, same, Mode.STARMAP)


def test_a_call_of_one_task_is_done_with_it(force):
    call = ExecutorCall(force, same, Mode.STARMAP, (7,))
    force.work()
    assert call.only.result(0) == 7
    call.close()


def test_a_future_runs_once_its_task_was_sent_and_cannot_be_cancelled_from_then_on(force, call):
    first, second = call.submit((1,)), call.submit((2,))
    assert not first.running()
    force.master.ask(force.peer)
    assert first.running()
    assert not second.running()
    call.cancel_all()
    assert [first.cancelled(), second.cancelled()] == [False, True]
    force.master.work(force.peer, lambda item: item[0])
    assert first.result(0) == 1
    assert not first.cancel()


def test_a_cancelled_task_is_never_sent_and_waiting_for_it_ends(force, call):
    called = []
    kept, cancelled = call.submit((1,)), call.submit((2,))
    cancelled.add_done_callback(lambda _: called.append(threading.current_thread()))
    assert cancelled.cancel()
    assert cancelled.cancel()
    assert called == [threading.current_thread()]
    assert concurrent.futures.wait([cancelled], 0).done == {cancelled}
    # a call may be closed twice, and does what it has
    call.close()
    call.close()
    force.work()
    assert kept.result(0) == 1
    assert [items for _, items in force.peer.tasks()] == [[(1,)]]
    with pytest.raises(CancelledError):
        cancelled.result(0)


def test_a_future_keeps_what_its_user_set(force, call):
    future = call.submit((1,))
    force.master.ask(force.peer)
    future.set_result("mine")
    other = call.submit((2,))
    force.work()
    assert (future.result(0), other.result(0)) == ("mine", 2)


def test_a_task_that_is_sent_again_goes_on_running(force, call):
    future = call.submit((1,))
    force.master.ask(force.peer)
    force.master.dispatcher.lost("a", None, counts=False)
    assert future.running()
    again = force.master.connect("a")
    force.master.ask(again)
    force.master.work(again, lambda item: item[0])
    assert future.result(0) == 1


def test_callbacks_of_results_run_on_their_own_thread_without_locks(force, call, caplog):
    called, seen = [], threading.Event()

    def note(future):
        called.append((threading.current_thread().name, future.result(0)))
        # another thread can use the dispatcher meanwhile
        other = threading.Thread(target=call.submit, args=((2,),))
        other.start()
        other.join(20)
        called.append(other.is_alive())
        raise ValueError("on purpose, which stops no other")

    future = call.submit((1,))
    future.add_done_callback(note)
    future.add_done_callback(lambda _: seen.set())
    force.work()
    assert seen.wait(20)
    assert called == [("test-callbacks", 1), False]
    assert "on purpose" in caplog.text
    future.add_done_callback(called.append)
    assert called[-1] is future
