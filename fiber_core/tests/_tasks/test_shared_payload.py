"""Large functions and arguments that recur: written once to shared memory, mapped by local workers."""

import gc
import pickle

import pytest

from fiber._tasks import protocol
from fiber._tasks.protocol import Mode
from fiber._tasks.shared_payload import SHARE_THRESHOLD, MappedArguments, RepeatedBuffers
from fiber._wire import codec, frames
from fiber._wire.frames import Kind
from fiber.exceptions import TerminatedError
from tasks_world import FakePayloadStore, Master, OutOfBand


def array(fill=1, size=SHARE_THRESHOLD):
    return OutOfBand(bytes([fill]) * size)


def raw(value):
    return pickle.PickleBuffer(value).raw()


@pytest.fixture
def store():
    return FakePayloadStore()


@pytest.fixture
def master(store):
    made = Master("local", "remote", store=store)
    made.peers["local"].is_same_host = True
    return made


class TestArgumentsOfACall:
    @pytest.fixture
    def repeated(self, store):
        return RepeatedBuffers(store, most=4 * SHARE_THRESHOLD)

    def test_what_is_equal_is_not_the_same(self, repeated, store):
        for value in [array(), array()]:
            assert repeated.locate(raw(value)) is None
        assert store.payloads == []

    @pytest.mark.parametrize(
        "value, room",
        [(array(size=SHARE_THRESHOLD - 1), True), (bytes(SHARE_THRESHOLD), True), (array(), False)],
        ids=["small", "without weak references", "without room"],
    )
    def test_what_is_not_shared_is_sent_each_time(self, repeated, store, value, room):
        store.room = room
        assert [repeated.locate(raw(value)) for _ in range(3)] == [None] * 3

    def test_an_object_at_the_place_of_one_that_is_gone_is_another(self, repeated, store):
        # each is gone before the next is made, most of them at the same address
        for fill in range(20):
            assert repeated.locate(raw(array(fill))) is None
            gc.collect()
        assert store.payloads == []

    def test_no_more_is_shared_than_there_is_room_for(self, repeated, store):
        kept = [array(fill, 2 * SHARE_THRESHOLD) for fill in range(3)]
        mapped = [[repeated.locate(raw(value)) for value in kept] for _ in range(2)][1]
        assert [place is None for place in mapped] == [False, False, True]

    def test_the_first_is_shared_whatever_its_size(self, repeated, store):
        value = array(size=5 * SHARE_THRESHOLD)
        assert [repeated.locate(raw(value)) is None for _ in range(2)] == [True, False]


def test_a_worker_unmaps_arguments_of_another_call(store):
    payload = store.write([bytes(4)])
    mapped = MappedArguments(store)
    mapped.finder_for(1)(payload.locator)
    mapped.finder_for(1)
    assert not payload.closed
    mapped.finder_for(2)
    assert payload.closed


def test_a_local_worker_gets_it_once_a_remote_one_each_time_and_it_goes_with_the_call(
    master, store
):
    def does(name, entries):
        """Has a worker do so many entries one by one; whether the argument was in each."""
        peer, found = master.peers[name], []
        master.ask(peer)
        for _ in range(entries):
            last = peer.of_kind(Kind.TASKS)[-1]
            found.append(last.body.nbytes > SHARE_THRESHOLD)
            head, _ = protocol.read_tasks(last.body)
            master.finish(peer, head, [0] * (head.stop - head.start))
        return found

    value = array()
    items = [(value, number) for number in range(6)]
    _, sink = master.call(max, items, mode=Mode.STARMAP, chunksize=1)
    assert does("local", 3) == [True, False, False]
    # it holds one more
    assert does("remote", 2) == [True, True]
    (payload,) = store.payloads
    assert (sink.is_done, payload.closed) == (False, False)
    does("local", 1)
    assert (sink.is_done, payload.closed) == (True, True)


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


class TestFunctions:
    @pytest.mark.parametrize("why", ["small", "no room", "no store", "nobody is local"])
    def test_it_is_sent_where_it_is_not_shared(self, master, store, why):
        store.room = why != "no room"
        if why == "no store":
            master = Master("local")
        master.peers["local"].is_same_host = why != "nobody is local"
        # known before the call is
        master.ask(master.peers["local"])
        size = SHARE_THRESHOLD // (2 if why == "small" else 1)
        run(master, "local", function=function(size=size))
        assert functions(master, "local")[0] > size
        assert store.payloads == []

    def test_the_shared_bytes_count_whatever_becomes_of_the_original(self, master):
        content = array()
        call, _ = master.call(lambda item: content, [1])
        before = frames.joined(call.function)
        content[:] = b"x" * SHARE_THRESHOLD
        assert frames.joined(call.function) == before

    def test_calls_of_the_same_function_share_it_and_so_does_the_next_one(self, master, store):
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

    @pytest.mark.parametrize(
        "room, closed",
        [(3, [True, True, False, False]), (0, [True, True, True, False])],
        ids=["the oldest", "all but the last, whatever its size"],
    )
    def test_of_those_without_a_call_some_go_and_workers_drop_them(
        self, master, store, monkeypatch, room, closed
    ):
        monkeypatch.setattr(master.dispatcher._shared_functions, "_kept", room * SHARE_THRESHOLD)
        for number in range(4):
            run(master, "local", function=function(number))
        assert [one.closed for one in store.payloads] == closed
        assert functions(master, "local").count(0) == sum(closed)

    def test_a_worker_that_cannot_map_it_is_sent_the_bytes(self, master, store):
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

    def test_workers_drop_a_function_that_refers_to_objects_when_its_call_is_done(self, master):
        refers = Refers()
        run(master, "local", "remote", function=refers)
        assert refers.released == 1
        assert functions(master, "local")[1:] == functions(master, "remote")[1:] == [0]
        # and get it again with the next call
        run(master, "local", function=refers)
        assert len(functions(master, "local")) == 4

    def test_but_not_while_another_call_has_it(self, master):
        refers = Refers()
        call, _ = master.call(refers, None)
        run(master, "local", "remote", function=refers)
        assert 0 not in functions(master, "local")
        assert call.number in master.dispatcher._calls

    def test_a_large_one_that_refers_to_objects_is_not_kept(self, master, store):
        refers, content = Refers(), bytes(SHARE_THRESHOLD)
        run(master, "local", function=lambda item: (refers, len(content), item)[2])
        assert [one.closed for one in store.payloads] == [True]

    def test_nothing_is_kept_of_a_pool_that_has_ended(self, master, store):
        run(master, "local", function=function(1))
        master.call(function(2), [1])
        master.dispatcher.end(TerminatedError())
        master.dispatcher.close()
        assert [one.closed for one in store.payloads] == [True, True]
        master.dispatcher.prepare(function(3), protocol.Mode.MAP, None, items=[1])
        assert len(store.payloads) == 2
