"""Arguments that recur are written once to shared memory, and each task maps them privately."""

import gc
import pickle

import pytest

from fiber._tasks import protocol
from fiber._tasks.protocol import Mode
from fiber._tasks.shared_payload import (
    SHARE_THRESHOLD,
    MappedArguments,
    PayloadNotFoundError,
    RepeatedBuffers,
)
from fiber._wire.frames import Kind
from tasks_world import FakePayloadStore, Master, OutOfBand


def array(fill=1, size=SHARE_THRESHOLD):
    return OutOfBand(bytes([fill]) * size)


def raw(value):
    return pickle.PickleBuffer(value).raw()


@pytest.fixture
def store():
    return FakePayloadStore()


class TestOfACall:
    @pytest.fixture
    def repeated(self, store):
        return RepeatedBuffers(store, most=4 * SHARE_THRESHOLD)

    def test_a_buffer_is_sent_the_first_time_and_shared_from_then_on(self, repeated, store):
        value = array()
        assert repeated.locate(raw(value)) is None
        place = repeated.locate(raw(value))
        assert place == store.payloads[0].locator
        assert repeated.locate(raw(value)) == place
        assert len(store.payloads) == 1

    def test_what_is_equal_is_not_the_same(self, repeated, store):
        for value in [array(), array()]:
            assert repeated.locate(raw(value)) is None
        assert store.payloads == []

    def test_small_ones_are_sent(self, repeated, store):
        value = array(size=SHARE_THRESHOLD - 1)
        assert [repeated.locate(raw(value)) for _ in range(3)] == [None] * 3

    def test_an_object_at_the_place_of_one_that_is_gone_is_another(self, repeated, store):
        # each is gone before the next is made, most of them at the same address
        for fill in range(20):
            assert repeated.locate(raw(array(fill))) is None
            gc.collect()
        assert store.payloads == []

    def test_a_buffer_whose_owner_has_no_weak_reference_is_sent(self, repeated, store):
        value = bytes(SHARE_THRESHOLD)
        assert [repeated.locate(memoryview(value)) for _ in range(3)] == [None] * 3

    def test_no_more_is_shared_than_there_is_room_for(self, repeated, store):
        kept = [array(fill, 2 * SHARE_THRESHOLD) for fill in range(3)]
        mapped = [[repeated.locate(raw(value)) for value in kept] for _ in range(2)][1]
        assert [place is None for place in mapped] == [False, False, True]

    def test_the_first_is_shared_whatever_its_size(self, repeated, store):
        value = array(size=5 * SHARE_THRESHOLD)
        assert [repeated.locate(raw(value)) is None for _ in range(2)] == [True, False]

    def test_where_there_is_no_memory_it_is_sent(self, repeated, store):
        store.room = False
        value = array()
        assert [repeated.locate(raw(value)) for _ in range(3)] == [None] * 3

    def test_closed_they_are_not_found(self, repeated, store):
        value = array()
        place = [repeated.locate(raw(value)) for _ in range(2)][1]
        repeated.close()
        assert store.find(place) is None
        repeated.close()


class TestOfAWorker:
    def test_each_task_gets_a_fresh_view(self, store):
        payload = store.write([bytes(4)])
        mapped = MappedArguments(store)
        first, second = (mapped.finder_for(1)(payload.locator) for _ in range(2))
        first[0] = 7
        assert bytes(second) == bytes(4)

    def test_arguments_of_another_call_are_unmapped(self, store):
        payload = store.write([bytes(4)])
        mapped = MappedArguments(store)
        mapped.finder_for(1)(payload.locator)
        mapped.finder_for(1)
        assert not payload.closed
        mapped.finder_for(2)
        assert payload.closed

    @pytest.mark.parametrize("known", [True, False])
    def test_a_payload_that_cannot_be_mapped_is_an_error_of_its_own(self, store, known):
        mapped = MappedArguments(store if known else None)
        with pytest.raises(PayloadNotFoundError, match="cannot map"):
            mapped.finder_for(1)(b"nowhere")


class TestOfAPool:
    @pytest.fixture
    def master(self, store):
        made = Master("local", "remote", store=store)
        made.peers["local"].is_same_host = True
        return made

    def does(self, master, name, entries):
        """Has a worker do so many entries one by one; the size of each."""
        peer, sizes = master.peers[name], []
        master.ask(peer)
        for _ in range(entries):
            last = peer.of_kind(Kind.TASKS)[-1]
            sizes.append(last.body.nbytes)
            head, _ = protocol.read_tasks(last.body)
            master.finish(peer, head, [0] * (head.stop - head.start))
        return sizes

    def test_a_local_worker_gets_it_once_and_a_remote_one_each_time(self, master, store):
        value = array()
        items = [(value, number) for number in range(6)]
        _, sink = master.call(max, items, mode=Mode.STARMAP, chunksize=1)
        local = self.does(master, "local", 3)
        # it holds one more
        remote = self.does(master, "remote", 2)
        assert [size > SHARE_THRESHOLD for size in local] == [True, False, False]
        assert [size > SHARE_THRESHOLD for size in remote] == [True] * 2
        assert not sink.is_done
        assert len(store.payloads) == 1

    def test_it_is_gone_when_the_call_is_done(self, master, store):
        value = array()
        _, sink = master.call(max, [(value, 1)] * 3, mode=Mode.STARMAP, chunksize=1)
        self.does(master, "local", 2)
        assert not store.payloads[0].closed
        self.does(master, "local", 1)
        assert sink.is_done
        assert store.payloads[0].closed

    def test_it_is_gone_when_the_pool_is(self, master, store):
        value = array()
        master.call(max, [(value, 1)] * 3, mode=Mode.STARMAP, chunksize=1)
        self.does(master, "local", 2)
        master.dispatcher.end(RuntimeError("enough"))
        assert store.payloads[0].closed
