"""Large functions: written once to shared memory, mapped by local workers, released when unused."""

import pytest

from fiber._tasks import protocol
from fiber._tasks.shared_payload import SHARE_THRESHOLD
from fiber._wire import codec, frames
from fiber._wire.frames import Kind
from fiber.exceptions import TerminatedError
from tasks_world import FakePayloadStore, Master


class Refers:
    """Is pickled with a reference that is released with the call that carries it."""

    def __init__(self):
        self.released = 0

    def __call__(self, item):
        return item

    def __reduce__(self):
        codec.envelope().on_release(self._release)
        return Refers, ()

    def _release(self):
        self.released += 1


def function(number=0, size=SHARE_THRESHOLD):
    content = bytes([number]) * size
    return lambda item: (len(content), item)[1]


@pytest.fixture
def store():
    return FakePayloadStore()


@pytest.fixture
def master(store):
    made = Master("local", "remote", store=store)
    made.peers["local"].is_same_host = True
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
    """The FUNCTION messages of a worker: a locator, a size or 0."""
    messages = []
    for sent in master.peers[name].of_kind(Kind.FUNCTION):
        _, rest = protocol.read_function(sent.body)
        messages.append(bytes(rest) if sent.id == protocol.SHARED else len(rest))
    return messages


def test_it_is_written_once_and_only_local_workers_get_its_locator(master, store):
    run(master, "local", "remote")
    (payload,) = store.payloads
    assert functions(master, "local") == [payload.locator]
    assert functions(master, "remote") == [payload.size]


def test_small_ones_are_sent(master, store):
    run(master, "local", function=function(size=SHARE_THRESHOLD // 2))
    assert store.payloads == []
    assert functions(master, "local")[0] > SHARE_THRESHOLD // 2


def test_without_a_local_worker_nothing_is_shared(master, store):
    master.ask(master.peers["remote"])
    run(master, "remote")
    assert store.payloads == []


def test_where_there_is_no_room_it_is_sent(master, store):
    store.room = False
    run(master, "local", "remote")
    assert functions(master, "local") == functions(master, "remote")


def test_the_shared_bytes_count_whatever_becomes_of_the_original(master):
    content = bytearray(SHARE_THRESHOLD)
    call, _ = master.call(lambda item: content, [1])
    before = frames.joined(call.function)
    content[:] = b"x" * SHARE_THRESHOLD
    assert frames.joined(call.function) == before


def test_calls_of_the_same_function_share_it_and_so_does_the_next_one(master, store):
    one = function()
    first, _ = master.call(one, [1])
    second, _ = master.call(one, [1])
    assert first.shared_function is second.shared_function
    master.dispatcher.end(TerminatedError())
    other = Master("local", store=store)
    other.peers["local"].is_same_host = True
    run(other, "local", function=one)
    run(other, "local", function=one)
    assert len(store.payloads) == 2
    assert functions(other, "local") == [store.payloads[1].locator]


def test_of_those_without_a_call_the_oldest_go_and_workers_drop_them(master, store, monkeypatch):
    monkeypatch.setattr(master.dispatcher._shared_functions, "_kept", 3 * SHARE_THRESHOLD)
    for number in range(4):
        run(master, "local", function=function(number))
    assert [one.closed for one in store.payloads] == [True, True, False, False]
    assert functions(master, "local").count(0) == 2


def test_the_last_one_is_kept_whatever_its_size(master, store, monkeypatch):
    monkeypatch.setattr(master.dispatcher._shared_functions, "_kept", 0)
    run(master, "local", function=function(1))
    run(master, "local", function=function(2))
    assert [one.closed for one in store.payloads] == [True, False]


def test_a_worker_that_cannot_map_it_is_sent_the_bytes(master, store):
    master.call(function(), [1])
    local = master.peers["local"]
    master.ask(local)
    digest, _ = protocol.read_function(local.of_kind(Kind.FUNCTION)[0].body)
    master.send(local, Kind.MISSING, [digest])
    assert functions(master, "local") == [store.payloads[0].locator] * 2
    master.send(local, Kind.MISSING, [digest], number=protocol.SHARED)
    assert functions(master, "local")[2:] == [store.payloads[0].size]
    # and every other one as well
    ((head, items),) = local.tasks()
    master.finish(local, head, items)
    master.call(function(2), [1])
    assert functions(master, "local")[3] > SHARE_THRESHOLD
    assert len(store.payloads) == 1


def test_workers_drop_a_function_that_refers_to_objects_when_its_call_is_done(master):
    refers = Refers()
    run(master, "local", "remote", function=refers)
    assert refers.released == 1
    assert functions(master, "local")[1:] == functions(master, "remote")[1:] == [0]
    # and get it again with the next call
    run(master, "local", function=refers)
    assert len(functions(master, "local")) == 4


def test_but_not_while_another_call_has_it(master):
    refers = Refers()
    call, _ = master.call(refers, None)
    run(master, "local", "remote", function=refers)
    assert 0 not in functions(master, "local")
    assert call.number in master.dispatcher._calls


def test_a_large_one_that_refers_to_objects_is_not_kept(master, store):
    refers, content = Refers(), bytes(SHARE_THRESHOLD)
    run(master, "local", function=lambda item: (refers, len(content), item)[2])
    assert [one.closed for one in store.payloads] == [True]


def test_nothing_is_kept_of_a_pool_that_has_ended(master, store):
    run(master, "local", function=function(1))
    master.call(function(2), [1])
    master.dispatcher.end(TerminatedError())
    master.dispatcher.close()
    assert [one.closed for one in store.payloads] == [True, True]
    master.dispatcher.prepare(function(3), protocol.Mode.MAP, None, items=[1])
    assert len(store.payloads) == 2


def test_a_pool_may_have_no_memory():
    master = Master("local")
    master.peers["local"].is_same_host = True
    run(master, "local")
    assert functions(master, "local")[0] > SHARE_THRESHOLD
