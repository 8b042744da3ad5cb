"""Messages about calls, their outcomes, and the threads that they are made on."""

import pickle
import queue
import threading

import pytest

from fiber._objects.address import Address, Kind
from fiber._objects.handle import encode
from fiber._objects.managed import calls
from fiber._objects.managed.caller_threads import CallerThreads
from fiber._objects.managed.calls import Answer, CreatedObject
from fiber._objects.queue.messages import ItemWithReferences
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError
from fiber.model.timing import Timing
from wire_world import until

WITH_REFERENCES = ItemWithReferences.of([("owner", ("ipc:///x",), 7, 9)], pickle.dumps("held"))


def there(segments):
    return memoryview(b"".join(segments))


@pytest.mark.parametrize("item", [b"plain", WITH_REFERENCES], ids=["plain", "with references"])
def test_a_call_arrives_as_it_was_sent(item):
    caller, found = calls.read_call(there(calls.call(3, item)))

    assert caller == 3
    assert type(found) is ItemWithReferences if item is WITH_REFERENCES else bytes(found) == item
    assert calls.references(found) == (
        [("owner", ("ipc:///x",), 7, 9)] if item is WITH_REFERENCES else ()
    )


def test_an_answer_tells_where_its_threads_are_served():
    (word, item), caller_threads = calls.read_answer(
        there(calls.answer((Answer.RETURNED, WITH_REFERENCES), 5))
    )

    assert (word, caller_threads) == (Answer.RETURNED, 5)
    assert calls.value((word, item)) == "held"


@pytest.mark.parametrize("body", [b"", b"\x09" * 10, b"\x00"])
def test_nonsense_is_refused(body):
    with pytest.raises(WireError):
        calls.read_answer(memoryview(body))
    with pytest.raises(WireError):
        calls.read_call(memoryview(b""))


def test_what_was_raised_is_raised():
    with pytest.raises(KeyError):
        calls.value((Answer.RAISED, encode(KeyError("x"))))


def test_what_failed_is_a_remote_error_with_its_cause():
    from multiprocessing.managers import RemoteError

    with pytest.raises(RemoteError, match="the words") as caught:
        calls.value((Answer.FAILED, encode(("the words", ValueError(1)))))
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_class_of_proxies_is_loaded_where_it_is_needed():
    address = Address("owner", ("ipc:///x",), 7, Kind.REFERENT)
    made = calls.value(
        (Answer.CREATED, encode(CreatedObject("t", ("m",), address, pickle.dumps(dict))))
    )

    assert made.address == address
    assert calls.load_proxytype(made) is dict


# -- threads


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


def test_an_unknown_operation_is_refused(mine):
    message = Message(Frame.CAST, mine.target, 1, memoryview(calls.NUMBERED.pack(99, 1)))
    with pytest.raises(WireError, match="operation 99"):
        mine.on_message(None, message)


def test_what_is_closed_is_served_no_more(mine, owner):
    mine.close()

    assert mine.target not in owner.endpoint._services
