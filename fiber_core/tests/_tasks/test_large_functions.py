"""Large functions: laid once, named to workers that may map them, and gone when nobody needs them."""

import pytest

from fiber._tasks import protocol
from fiber._tasks.shared_payload import LARGE
from fiber._wire import codec, frames
from fiber._wire.frames import Kind
from fiber.exceptions import TerminatedError
from tasks_world import FakeMemory, Master


class Refers:
    """Is pickled with something that lives as long as what carries it."""

    def __init__(self):
        self.released = 0

    def __call__(self, item):
        return item

    def __reduce__(self):
        codec.carrier().on_release(self._release)
        return Refers, ()

    def _release(self):
        self.released += 1


def function(number=0, size=LARGE):
    content = bytes([number]) * size
    return lambda item: (len(content), item)[1]


@pytest.fixture
def memory():
    return FakeMemory()


@pytest.fixture
def master(memory):
    made = Master("near", "far", memory=memory)
    made.peers["near"].is_near = True
    return made


def run(master, *names, **options):
    """Do all of a call on some workers, which ask anew; the call."""
    function_ = options.pop("function", None) or function()
    before = {name: len(master.peers[name].tasks()) for name in names}
    call, sink = master.call(function_, [1] * len(names), chunksize=1, **options)
    for name in names:
        master.ask(master.peers[name])
    for name in names:
        peer = master.peers[name]
        for head, items in peer.tasks()[before[name] :]:
            master.finish(peer, head, items, credits_=0)
    assert sink.is_done
    return call


def functions(master, name):
    """What a worker was told of functions: a place, a size or nothing."""
    told = []
    for sent in master.peers[name].of_kind(Kind.FUNCTION):
        _, rest = protocol.read_function(sent.body)
        told.append(bytes(rest) if sent.id == protocol.LAID else len(rest))
    return told


def test_it_is_laid_once_and_only_who_is_near_is_told_where(master, memory):
    run(master, "near", "far")
    (laid,) = memory.laid
    assert functions(master, "near") == [laid.place]
    assert functions(master, "far") == [laid.size]


def test_small_ones_are_sent(master, memory):
    run(master, "near", function=function(size=LARGE // 2))
    assert memory.laid == []
    assert functions(master, "near")[0] > LARGE // 2


def test_what_goes_to_nobody_near_is_not_laid(master, memory):
    master.ask(master.peers["far"])
    run(master, "far")
    assert memory.laid == []


def test_where_there_is_no_room_it_is_sent(master, memory):
    memory.room = False
    run(master, "near", "far")
    assert functions(master, "near") == functions(master, "far")


def test_what_was_laid_is_what_counts_whatever_becomes_of_the_original(master):
    content = bytearray(LARGE)
    call, _ = master.call(lambda item: content, [1])
    before = frames.joined(call.function)
    content[:] = b"x" * LARGE
    assert frames.joined(call.function) == before


def test_calls_of_the_same_function_share_it_and_so_does_the_next_one(master, memory):
    one = function()
    first, _ = master.call(one, [1])
    second, _ = master.call(one, [1])
    assert first.laid is second.laid
    master.dispatcher.end(TerminatedError())
    other = Master("near", memory=memory)
    other.peers["near"].is_near = True
    run(other, "near", function=one)
    run(other, "near", function=one)
    assert len(memory.laid) == 2
    assert functions(other, "near") == [memory.laid[1].place]


def test_of_those_without_a_call_the_oldest_go_and_workers_drop_them(master, memory, monkeypatch):
    monkeypatch.setattr(master.dispatcher._large, "_kept", 3 * LARGE)
    for number in range(4):
        run(master, "near", function=function(number))
    assert [one.closed for one in memory.laid] == [True, True, False, False]
    assert functions(master, "near").count(0) == 2


def test_the_last_one_is_kept_whatever_its_size(master, memory, monkeypatch):
    monkeypatch.setattr(master.dispatcher._large, "_kept", 0)
    run(master, "near", function=function(1))
    run(master, "near", function=function(2))
    assert [one.closed for one in memory.laid] == [True, False]


def test_who_cannot_map_it_gets_it_sent(master, memory):
    master.call(function(), [1])
    near = master.peers["near"]
    master.ask(near)
    digest, _ = protocol.read_function(near.of_kind(Kind.FUNCTION)[0].body)
    master.tell(near, Kind.MISSING, [digest])
    assert functions(master, "near") == [memory.laid[0].place] * 2
    master.tell(near, Kind.MISSING, [digest], number=protocol.LAID)
    assert functions(master, "near")[2:] == [memory.laid[0].size]
    # and every other one as well
    ((head, items),) = near.tasks()
    master.finish(near, head, items)
    master.call(function(2), [1])
    assert functions(master, "near")[3] > LARGE
    assert len(memory.laid) == 1


def test_workers_drop_a_function_that_refers_to_objects_when_its_call_is_done(master):
    refers = Refers()
    run(master, "near", "far", function=refers)
    assert refers.released == 1
    assert functions(master, "near")[1:] == functions(master, "far")[1:] == [0]
    # and get it again with the next call
    run(master, "near", function=refers)
    assert len(functions(master, "near")) == 4


def test_but_not_while_another_call_has_it(master):
    refers = Refers()
    call, _ = master.call(refers, None)
    run(master, "near", "far", function=refers)
    assert 0 not in functions(master, "near")
    assert call.number in master.dispatcher._calls


def test_a_large_one_that_refers_to_objects_is_not_kept(master, memory):
    refers, content = Refers(), bytes(LARGE)
    run(master, "near", function=lambda item: (refers, len(content), item)[2])
    assert [one.closed for one in memory.laid] == [True]


def test_nothing_is_kept_of_a_pool_that_has_ended(master, memory):
    run(master, "near", function=function(1))
    master.call(function(2), [1])
    master.dispatcher.end(TerminatedError())
    master.dispatcher.close()
    assert [one.closed for one in memory.laid] == [True, True]
    master.dispatcher.prepare(function(3), protocol.Mode.MAP, None, items=[1])
    assert len(memory.laid) == 2


def test_a_pool_may_have_no_memory():
    master = Master("near")
    master.peers["near"].is_near = True
    run(master, "near")
    assert functions(master, "near")[0] > LARGE
