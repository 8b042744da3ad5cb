"""The life of a manager: started, connected to, shut down, lost; types that users register."""

import gc
import os
import signal
import sys
from multiprocessing import AuthenticationError, ProcessError
from multiprocessing.managers import RemoteError

import pytest

import fiber
import process_signals
from children import finish, start
from fiber.exceptions import PeerLostError
from fiber.managers import BaseManager, BaseProxy, MakeProxyType, SyncManager
from wire_world import until

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(120),
]


class Counter:
    def __init__(self, start=0):
        if start < 0:
            raise ValueError(start)
        self._value = start

    def add(self, n=1):
        self._value += n
        return self._value

    def child(self):
        return Counter(self._value)

    def each(self):
        yield from range(self._value)

    def fail(self):
        return {}["missing"]

    def unpicklable(self):
        return (n for n in ())

    def leave(self):
        raise SystemExit(3)

    def pid(self):
        return os.getpid()

    def _hidden(self):
        return "hidden"


class CounterProxy(BaseProxy):
    _exposed_ = ("add", "_hidden")

    def add(self, n=1):
        return self._callmethod("add", (n,))

    def hidden(self):
        return self._callmethod("_hidden")


class Counters(BaseManager):
    pass


MadeProxy = MakeProxyType("MadeProxy", ("add",))

Counters.register("Counter", Counter, method_to_typeid={"child": "Child", "each": "Each"})
Counters.register("Child", create_method=False)
Counters.register("Proxied", Counter, CounterProxy)
Counters.register("CreatedObject", Counter, MadeProxy)
Counters.register("Exposed", Counter, exposed=("pid",))
Counters.register("Adopted")
Counters.register("Each", proxytype=fiber.managers.IteratorProxy, create_method=False)
Counters.register("Lambda", lambda: [1])


@pytest.fixture(scope="module")
def counters(shared_runtime):
    with Counters() as started:
        yield started


def test_an_object_lives_in_the_managers_process(counters):
    counter = counters.Counter(5)

    assert counter.add() == 6
    assert counter.add(n=4) == 10
    assert counter.pid() == counters._process.pid != os.getpid()


def test_only_public_methods_are_exposed_by_default(counters):
    assert not hasattr(counters.Counter(), "_hidden")
    assert counters.Proxied().hidden() == "hidden"
    assert not hasattr(counters.Exposed(), "add")


@pytest.mark.parametrize(
    "kind, method, text",
    [
        ("Exposed", "add", "'add' of <class .*Counter'> object is not in exposed"),
        ("Counter", "unpicklable", "Unserializable message: "),
        # neither side ends
        ("Counter", "leave", "SystemExit: 3"),
    ],
)
def test_what_a_method_cannot_do_is_a_remote_error(counters, kind, method, text):
    counter = getattr(counters, kind)()
    with pytest.raises(RemoteError, match=text):
        counter._callmethod(method)

    assert counters.Counter().add() == 1


def test_an_exception_comes_as_itself_with_the_remote_traceback(counters):
    with pytest.raises(KeyError) as caught:
        counters.Counter().fail()
    assert 'return {}["missing"]' in str(caught.value.__cause__)


def test_what_cannot_be_made_is_a_remote_error_that_tells_why(counters):
    with pytest.raises(RemoteError, match="ValueError: -1") as caught:
        counters.Counter(-1)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_method_may_return_a_proxy(counters):
    first = counters.Counter(3)
    second = first.child()

    assert second.add() == 4
    assert first.add() == 4
    assert list(first.each()) == [0, 1, 2, 3]


def use(counter, results):
    results.put((counter.add(), counter.child().add(), list(counter.each())))


def test_a_proxy_that_was_sent_can_do_the_same(counters):
    results = fiber.Queue()
    finish(start(use, counters.Counter(1), results))

    assert results.get(timeout=20) == (2, 3, [0, 1])


@pytest.mark.parametrize("kind", ["Proxied", "CreatedObject"])
def test_proxies_of_every_make_travel(counters, kind):
    counter = getattr(counters, kind)()
    finish(start(counter.add))

    assert counter.add() == 2


def test_without_a_callable_the_value_is_handed_over(counters):
    assert str(counters.Adopted([1])) == "[1]"
    with pytest.raises(RemoteError, match="must have one non-keyword argument"):
        counters.Adopted()


def test_a_callable_without_a_home_is_sent_by_value(counters):
    assert counters.Lambda().copy() == [1]


def test_an_object_dies_with_its_last_proxy(counters):
    # those of other tests may be held by a traceback, and still be on their way out
    gc.collect()
    until(lambda: not counters._number_of_objects())
    first = counters.Counter()
    second = counters.Counter()
    assert counters._number_of_objects() == 2
    assert counters._debug_info().count("processes=1") == 2
    del first
    assert counters._number_of_objects() == 1
    del second
    assert counters._number_of_objects() == 0


def test_it_starts_once(counters):
    with pytest.raises(ProcessError, match="Already started server"):
        counters.start()
    with pytest.raises(ProcessError, match="Already started server"):
        counters.get_server()


def test_an_unstarted_one_makes_nothing():
    with pytest.raises(AssertionError, match="server not yet started"):
        Counters().Counter()


def test_an_initializer_runs_first(tmp_path):
    manager = Counters()
    manager.start((tmp_path / "said").write_text, ("hello",))

    assert (tmp_path / "said").read_text() == "hello"
    process = manager._process
    manager.shutdown()
    assert process.exitcode == 0
    assert process.name.startswith("Counters-")
    manager.join()
    with pytest.raises(ProcessError, match="Manager has shut down"):
        manager.start()


def test_an_initializer_that_fails_is_an_error_of_start():
    with pytest.raises(EOFError, match="ended with exit code 7 before it served"):
        Counters().start(sys.exit, (7,))
    with pytest.raises(TypeError, match="initializer must be a callable"):
        Counters().start(3)


def test_a_proxy_outlives_its_manager_with_an_error():
    with SyncManager() as manager:
        numbers = manager.list()
    with pytest.raises(PeerLostError, match="this managed object lives in is gone"):
        numbers.append(1)

    assert "'__str__()' failed>" in str(numbers)


def test_a_manager_ends_when_it_is_collected():
    manager = Counters()
    manager.start()
    process = manager._process
    del manager

    process.join(60)
    assert process.exitcode == 0


def test_a_manager_that_does_not_listen_is_ended():
    manager = Counters(shutdown_timeout=0.2)
    manager.start()
    process = manager._process
    process_signals.send(process, signal.SIGSTOP)
    manager.shutdown()

    assert process.exitcode in (-signal.SIGTERM, -signal.SIGKILL)


def connect(address, authkey, results):
    other = Counters(address, authkey)
    try:
        other.connect()
        results.put(other.Adopted([1, 2]).count(2))
    except AuthenticationError as error:
        results.put(error)


@pytest.mark.parametrize("authkey,got", [(b"secret", 1), (b"guess", "another authkey")])
def test_another_process_connects_by_address_and_key(authkey, got):
    results = fiber.Queue()
    with Counters(authkey=b"secret") as manager:
        process = start(connect, manager.address, authkey, results)
        found = results.get(timeout=60)
        finish(process)

    assert (got in str(found)) if isinstance(found, AuthenticationError) else (got == found)


def serve(results):
    server = Counters().get_server()
    results.put((server.address, os.getpid()))
    server.serve_forever()


def test_any_process_may_serve():
    results = fiber.Queue()
    process = start(serve, results)
    address, pid = results.get(timeout=60)
    manager = Counters(address)
    manager.connect()

    assert manager.Counter().pid() == pid
    process.terminate()
    process.join(60)


def test_serializers_other_than_pickle_are_refused():
    with pytest.raises(KeyError):
        BaseManager(serializer="marshal")
    with pytest.raises(ValueError, match="speak pickle only"):
        BaseManager(serializer="xmlrpclib")
