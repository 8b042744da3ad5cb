"""A manager's server: its methods, its address, and rollback for callers that died."""

import queue
import threading

import pytest

import fiber
from fiber._objects.address import Address, Kind
from fiber.managers import BaseManager
from fiber.managers.base import Server, address_of, proof, public_methods, rollback, text_of
from wire_world import in_thread

ADDRESS = Address("1f2e.3", ("ipc:///run/x.sock", "tls+tcp://10.0.0.1:5"), 17, Kind.REFERENT)


def test_an_address_of_the_run_is_written_and_read():
    assert text_of(ADDRESS) == "1f2e.3/11@ipc:///run/x.sock,tls+tcp://10.0.0.1:5"
    assert address_of(text_of(ADDRESS)) == ADDRESS
    for other in (("host", 5), "/tmp/a@b/c", "", None):
        assert address_of(other) is None


def test_only_public_methods_are_served_where_nothing_is_said():
    class Thing:
        value = 1

        def method(self): ...

        def _hidden(self): ...

    assert public_methods(Thing()) == ["method"]


def test_a_proof_is_of_one_key_and_one_address():
    assert proof(b"key", "here") == proof(b"key", "here")
    assert len({proof(b"key", "here"), proof(b"key", "there"), proof(b"other", "here")}) == 3


class Numbers(BaseManager):
    pass


Numbers.register("numbers", list, fiber.managers.ListProxy)
Numbers.register("wrong", list, fiber.managers.ListProxy, method_to_typeid=None)
Numbers._registry["wrong"] = (list, ("pop",), ["pop"], fiber.managers.ListProxy)


def test_a_key_is_bytes():
    with pytest.raises(TypeError, match="Authkey 'text' is type <class 'str'>, not bytes"):
        Server({}, None, "text", "pickle")


def test_it_serves_until_shutdown_is_called():
    manager = Numbers()
    server = manager.get_server()
    served = in_thread(server.serve_forever)
    client = Numbers(server.address)
    client.connect()
    numbers = client.numbers([1])
    # in its own process it is called on the caller's thread
    numbers.append(2)
    assert list(numbers) == [1, 2]
    assert client._number_of_objects() == 1
    assert "[1, 2]" in client._debug_info()
    with pytest.raises(Exception, match="Method_to_typeid .* not dict"):
        client.wrong()
    client._call_server("shutdown")

    with pytest.raises(SystemExit) as caught:
        served()
    assert caught.value.code == 0
    server.close()


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

    assert in_thread(lock.acquire, False)()


def test_a_condition_is_released_after_a_wait_in_vain_too():
    condition = threading.Condition()
    condition.acquire()
    rollback(condition, "wait", condition.wait(0.001))

    with pytest.raises(RuntimeError):
        condition.release()


def test_a_lock_that_was_not_had_and_other_objects_are_left_alone():
    lock = threading.Lock()
    lock.acquire()
    rollback(lock, "acquire", False)
    for other in ({}, threading.Event(), queue.LifoQueue(), object()):
        rollback(other, "get", 1)
        rollback(other, "acquire", True)

    assert lock.locked()
