"""The threads that calls are made on."""

import queue
import threading

import pytest

from fiber._objects.managed import calls
from fiber._objects.managed.caller_threads import CallerThreads
from fiber._wire.frames import Kind, Message
from fiber.exceptions import WireError
from fiber.model.timing import Timing
from wire_world import until


@pytest.fixture
def mine(owner):
    return CallerThreads(owner.store)


@pytest.fixture
def impatient(world):
    """Threads that end as soon as they are idle."""
    return CallerThreads(world.node("impatient", timing=Timing(idle_thread=0.01)).store)


def submit(mine, number, task, **options):
    mine.submit(None, number, task, **{"thread_neutral": True, **options})


def test_calls_of_one_caller_run_in_order_on_one_thread(mine):
    found = queue.SimpleQueue()
    for n in range(5):
        submit(mine, 1, lambda n=n: found.put((n, threading.get_ident())))
    got = [found.get(timeout=20) for _ in range(5)]
    mine.end_soon(1)

    assert [n for n, _ in got] == list(range(5))
    assert len({ident for _, ident in got}) == 1


def test_an_idle_thread_ends_and_another_takes_its_place(impatient):
    done = threading.Event()
    submit(impatient, 1, threading.Event)
    until(lambda: impatient.threads == 0)
    submit(impatient, 1, done.set)

    assert done.wait(20)
    until(lambda: impatient.threads == 0)


def test_one_that_a_lock_may_belong_to_does_not(impatient):
    idents = queue.SimpleQueue()
    submit(impatient, 1, lambda: idents.put(threading.get_ident()), thread_neutral=False)
    first = idents.get(timeout=20)
    submit(impatient, 2, threading.Event)
    # the other one is idle for as long
    until(lambda: impatient.threads == 1)
    submit(impatient, 1, lambda: idents.put(threading.get_ident()))

    assert idents.get(timeout=20) == first
    impatient.end_soon(1)


def test_a_failing_task_is_logged_and_ends_no_thread(mine, caplog):
    done = threading.Event()
    submit(mine, 1, lambda: 1 / 0)
    submit(mine, 1, done.set)

    assert done.wait(20)
    mine.end_soon(1)
    assert "a call of a managed object was not answered" in caplog.text


def test_nonsense_is_refused(mine):
    message = Message(Kind.CAST, mine.target, 1, memoryview(calls.NUMBERED.pack(99, 1)))
    with pytest.raises(WireError, match="operation 99"):
        mine.on_message(None, message)


def test_what_is_closed_is_served_no_more(mine, owner):
    mine.close()

    assert mine.target not in owner.endpoint._services
