"""Messages about calls, and their outcomes."""

import pickle

import pytest

from fiber._objects.address import Address, Kind
from fiber._objects.handle import encode
from fiber._objects.managed import calls
from fiber._objects.managed.calls import Answer, CreatedObject
from fiber._objects.queue.messages import ItemWithReferences
from fiber.exceptions import WireError

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
