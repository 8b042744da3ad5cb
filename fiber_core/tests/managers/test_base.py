"""Managers: started, connected to, shut down, lost; types that users register, their proxies."""

import copy
import gc
import pickle
import signal
import sys
from multiprocessing import ProcessError
from multiprocessing.managers import RemoteError

import pytest

import fiber
import process_signals
from children import finish, start
from fiber.exceptions import PeerLostError
from fiber.managers import (
    AutoProxy,
    BaseManager,
    BaseProxy,
    MakeProxyType,
    SyncManager,
    Token,
    base,
)
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


class CounterProxy(BaseProxy):
    _exposed_ = ("add",)

    def add(self, n=1):
        return self._callmethod("add", (n,))


class Counters(BaseManager):
    pass


MadeProxy = MakeProxyType("MadeProxy", ("add",))

Counters.register("Counter", Counter, method_to_typeid={"child": "Child", "each": "Each"})
Counters.register("Child", create_method=False)
Counters.register("Proxied", Counter, CounterProxy)
Counters.register("CreatedObject", Counter, MadeProxy)
Counters.register("Adopted")
Counters.register("Each", proxytype=fiber.managers.IteratorProxy, create_method=False)
Counters.register("Lambda", lambda: [1])


@pytest.fixture(scope="module")
def counters(shared_runtime):
    with Counters() as started:
        yield started


def test_what_cannot_be_made_is_a_remote_error_that_tells_why(counters):
    with pytest.raises(RemoteError, match="ValueError: -1") as caught:
        counters.Counter(-1)
    assert isinstance(caught.value.__cause__, ValueError)


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


def test_a_start_that_fails_behind_the_process_s_leaves_none(monkeypatch):
    def refuse(*_arguments, **_options):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(base, "BaseProxy", refuse)
    manager = Counters()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        manager.start()
    assert manager._process.exitcode is not None


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


@pytest.mark.parametrize(
    "use, error, told",
    [
        (lambda started: started.start(), ProcessError, "Already started server"),
        (lambda started: started.get_server(), ProcessError, "Already started server"),
        (lambda _: Counters().Counter(), AssertionError, "server not yet started"),
        (lambda _: Counters().start(3), TypeError, "initializer must be a callable"),
        (lambda _: BaseManager(serializer="marshal"), KeyError, "marshal"),
        (lambda _: BaseManager(serializer="xmlrpclib"), ValueError, "speak pickle only"),
    ],
)
def test_misuse_is_refused(counters, use, error, told):
    with pytest.raises(error, match=told):
        use(counters)


def test_a_class_is_made_once():
    made = MakeProxyType("CreatedObject", ("a", "b"))

    assert made is MakeProxyType("CreatedObject", ["a", "b"])
    assert made is not MakeProxyType("CreatedObject", ("a",))
    assert issubclass(made, BaseProxy)
    assert (made.__name__, made._exposed_, made.a.__name__) == ("CreatedObject", ("a", "b"), "a")


def test_methods_pass_on_all_they_are_given():
    class Recording(MakeProxyType("Recorded", ("method",))):
        def __init__(self): ...

        def _callmethod(self, name, args=(), kwds=None):
            return name, args, kwds

    assert Recording().method(1, self=2, name=3) == ("method", (1,), {"self": 2, "name": 3})


def test_a_pickle_is_a_proxy_of_the_same_object_and_a_deep_copy_one_of_its_own(manager):
    numbers = manager.list([1])
    assert copy.deepcopy(numbers) == [1] == numbers._getvalue()
    other = pickle.loads(pickle.dumps(numbers))
    other.append(2)

    assert type(other) is type(numbers)
    assert numbers[:] == [1, 2]


def test_an_automatic_proxy_asks_for_the_methods_if_none_are_given(manager):
    queue = manager.Queue()
    token = Token(queue._token.typeid, queue._token.address, queue._token.id)

    assert AutoProxy(token, "pickle").qsize() == 0
    assert not hasattr(AutoProxy(token, "pickle", exposed=("get",)), "qsize")
