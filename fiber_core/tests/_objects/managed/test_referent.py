"""Managed objects: their methods, called here and from other processes."""

import gc
import threading

import pytest

from fiber._objects.address import Kind
from fiber._objects.managed.caller_threads import Strands
from fiber._objects.managed.calls import Made
from fiber._objects.managed.referent import Product, Referent
from fiber._objects.managed.remote_referent import Call, Strand, strand_of_thread
from fiber.exceptions import PeerLostError, WireError
from objects_world import in_thread
from wire_world import until


class Thing:
    def __init__(self):
        self.gate, self.waiting, self.threads = threading.Event(), threading.Event(), []

    def echo(self, value, *, twice=False):
        self.threads.append(threading.get_ident())
        return [value, value] if twice else value

    def wait(self):
        self.waiting.set()
        return self.gate.wait(20)

    def fail(self):
        raise LookupError("why")

    def leave(self):
        raise SystemExit(1)

    def lock(self):
        return threading.Lock()

    def keys(self):
        return {"a": 1}.keys()

    def child(self):
        return Thing()


METHODS = ("echo", "wait", "fail", "leave", "lock", "keys", "child", "missing")


def serve(owner, thing, **options):
    made = Referent(owner.store, Strands(owner.store), thing, METHODS, **options)
    made.hold(0)
    return made


@pytest.fixture
def thing():
    return Thing()


@pytest.fixture
def mine(owner, thing):
    return serve(owner, thing)


@pytest.fixture(params=["here", "elsewhere"])
def side(request, mine, other):
    return mine if request.param == "here" else other.remote(mine)


def test_a_method_is_called_with_copies(side, thing):
    given = [1]
    assert side.call_method("echo", (given,), {"twice": True}) == [[1], [1]]
    assert side.call_method("echo", (given,), {}) is not given


def test_an_exception_is_raised(side):
    with pytest.raises(LookupError, match="why") as caught:
        side.call_method("fail", (), {})
    assert 'raise LookupError("why")' in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "name,told",
    [
        ("leave", "SystemExit: 1"),
        ("lock", "Unserializable message"),
        ("missing", "no attribute 'missing'"),
        ("gate", "'gate' of <class .*Thing'> object is not in exposed"),
    ],
)
def test_other_failures_are_remote_errors(side, name, told):
    from multiprocessing.managers import RemoteError

    with pytest.raises(RemoteError, match=told):
        side.call_method(name, (), {})


def test_some_things_may_be_asked_of_everything(side):
    assert side.call_method("__repr__", (), {}).startswith("<")
    assert side.call_method("#METHODS", (), {}) == tuple(sorted(METHODS))
    assert side.call_method("keys", (), {}) == ["a"]


def test_a_call_that_waits_holds_up_its_own_strand_alone(side, thing):
    first, second = Strand(), Strand()
    waiting = side.begin("wait", (), {}, first)
    behind = side.begin("echo", (1,), {}, first)
    beside = side.begin("echo", (2,), {}, second)

    assert beside.wait(20)
    assert not behind.done
    done = threading.Event()
    behind.then(done.set)
    thing.gate.set()
    assert done.wait(20)
    assert (waiting.value(), behind.value(), beside.value()) == (True, 1, 2)
    late = threading.Event()
    behind.then(late.set)
    assert late.is_set()


def test_calls_of_one_thread_are_made_on_one_thread(mine, thing, other):
    theirs = other.remote(mine)
    for _ in range(3):
        theirs.call_method("echo", (0,), {})
    in_thread(lambda: theirs.call_method("echo", (0,), {}))()

    assert len(set(thing.threads[:3])) == 1
    assert thing.threads[3] != thing.threads[0]
    assert threading.get_ident() not in thing.threads


def test_the_thread_of_a_thread_that_ended_ends(mine, other):
    theirs = other.remote(mine)
    in_thread(lambda: theirs.call_method("echo", (0,), {}))()

    until(lambda: mine._strands.threads == 0)


def test_the_threads_of_a_process_that_died_end(mine, other):
    theirs = other.remote(mine)
    theirs.call_method("echo", (0,), {})
    assert mine._strands.threads == 1
    other.die()

    until(lambda: mine._strands.threads == 0)


def test_a_call_of_this_process_leaves_no_thread_either(mine):
    strand = Strand()
    assert mine.begin("echo", (1,), {}, strand).wait(20)
    assert mine._strands.threads == 1
    del strand

    until(lambda: mine._strands.threads == 0)


def test_a_caller_hears_of_its_owners_death(mine, thing, owner, other):
    theirs = other.remote(mine)
    got = in_thread(lambda: theirs.call_method("wait", (), {}))
    assert thing.waiting.wait(20)
    owner.die()
    thing.gate.set()

    with pytest.raises(PeerLostError, match="that this managed object lives in is gone"):
        got()
    with pytest.raises(PeerLostError):
        theirs.call_method("echo", (0,), {})


def adopting(owner, thing):
    strands = Strands(owner.store)

    def adopt(typeid, value):
        child = Referent(owner.store, strands, value, METHODS)
        return Product(child, typeid, METHODS, dict)

    made = Referent(owner.store, strands, thing, METHODS, typeids={"child": "T"}, adopt=adopt)
    made.hold(0)
    return made


def test_what_a_call_makes_is_held_for_its_caller(owner, thing, other):
    theirs = other.remote(adopting(owner, thing))
    made = theirs.call_method("child", (), {})
    assert isinstance(made, Made)
    assert (made.typeid, made.exposed) == ("T", METHODS)
    child = other.store.take(made.address, 0, 0)
    assert child.call_method("echo", (1,), {}) == 1
    child.drop(0)

    until(lambda: made.address.target not in owner.store._own)


def test_what_a_call_made_goes_where_nobody_asks_for_it(owner, thing, other):
    theirs = other.remote(adopting(owner, thing))
    call = theirs.begin("child", (), {}, strand_of_thread())
    assert call.wait(20)
    assert len(owner.store._own) == 2
    call.discard()

    until(lambda: len(owner.store._own) == 1)


def test_what_a_call_made_goes_with_a_caller_that_died_meanwhile(owner, thing, other):
    theirs = other.remote(adopting(owner, thing))
    assert theirs.begin("child", (), {}, strand_of_thread()).wait(20)
    assert len(owner.store._own) == 2
    other.die()

    until(lambda: len(owner.store._own) == 1)


def test_references_in_an_answer_that_nobody_reads_are_let_go_of(owner, thing, other):
    class Giver:
        def child(self):
            return Reference(held)

    held = owner.queue()
    theirs = other.remote(serve(owner, Giver()))
    call = theirs.begin("child", (), {}, strand_of_thread())
    assert call.wait(20)
    held.drop(0)
    assert held.target in owner.store._own
    call.discard()

    until(lambda: held.target not in owner.store._own)


class Reference:
    """Pickles as a string, with a ticket on its parcel, as a handle does."""

    def __init__(self, shared):
        self._shared = shared

    def __reduce__(self):
        from fiber._wire import codec

        address = self._shared.address
        self._shared.issue(77, 0, 1)
        codec.carrier().tickets[id(self)] = (address.ident, address.urls, address.target, 77)
        return str, ("",)


def test_references_in_an_answer_go_with_a_caller_that_died(owner, thing, other):
    class Giver:
        def child(self):
            return Reference(held)

    held = owner.queue()
    theirs = other.remote(serve(owner, Giver()))
    assert theirs.begin("child", (), {}, strand_of_thread()).wait(20)
    held.drop(0)
    other.die()

    until(lambda: held.target not in owner.store._own)


def test_the_object_goes_when_nobody_holds_it_and_not_on_the_handler_thread(owner, other):
    gone = []

    class Last:
        def echo(self, value):
            return value

        def __del__(self):
            gone.append(threading.current_thread().name)

    mine = serve(owner, Last())
    theirs = other.remote(mine)
    call = theirs.begin("echo", (1,), {}, strand_of_thread())
    theirs.drop(0)
    mine.drop(0)
    assert call.wait(20)
    assert call.value() == 1
    del mine, theirs, call
    gc.collect()

    until(lambda: gone)
    assert gone != [owner.reactor._thread.name]


def test_what_was_done_for_a_caller_that_died_meanwhile_is_taken_back(owner, thing, other):
    undone = []
    mine = serve(owner, thing, undo=lambda *facts: undone.append(facts))
    theirs = other.remote(mine)
    theirs.begin("wait", (), {}, strand_of_thread())
    assert thing.waiting.wait(20)
    other.die()
    until(lambda: not mine._references.peers(0))
    thing.gate.set()

    until(lambda: undone == [(thing, "wait", True)])


def test_an_interrupted_call_holds_up_nothing_and_is_taken_back(owner, thing, other, monkeypatch):
    undone = []
    mine = serve(owner, thing, undo=lambda *facts: undone.append(facts))
    theirs = other.remote(mine)
    wait = Call.wait

    def interrupted(call, timeout=None):
        assert thing.waiting.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(Call, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        theirs.call_method("wait", (), {})
    monkeypatch.setattr(Call, "wait", wait)
    assert theirs.call_method("echo", (1,), {}) == 1
    until(lambda: mine._strands._abandoned)
    thing.gate.set()

    until(lambda: undone == [(thing, "wait", True)])
    until(lambda: not mine._strands._abandoned and not mine._strands._unanswered)
    # that which waited has ended
    until(lambda: mine._strands.threads == 1)


def test_other_operations_are_refused(mine):
    from types import SimpleNamespace

    message = SimpleNamespace(body=memoryview(b"\x7f"), kind=None)
    with pytest.raises(WireError, match="a managed object is asked for operation 127"):
        mine.on_message(SimpleNamespace(), message)


def test_it_is_of_its_kind(mine):
    assert mine.address.kind is Kind.REFERENT
    assert mine.address.shape.name == "managed object"
    assert "processes=1" in mine.described()
