"""Arguments that come again are laid once, and each task has pages of its own."""

import gc
import pickle
import threading

import pytest

from fiber._tasks import protocol
from fiber._tasks.call import Call
from fiber._tasks.outcomes import Received
from fiber._tasks.protocol import Mode, Tasks
from fiber._tasks.shared_payload import LARGE, BlindError, Places, Repeated
from fiber._tasks.worker import Worker
from fiber._wire.frames import Kind
from tasks_world import TARGET, FakeLink, FakeMemory, Master, Sink


class Array(bytearray):
    """Is pickled with its content out of band, as arrays are."""

    def __reduce_ex__(self, protocol):
        return memoryview, (pickle.PickleBuffer(self),)


def array(fill=1, size=LARGE):
    return Array(bytes([fill]) * size)


def raw(value):
    return pickle.PickleBuffer(value).raw()


def sum_of_ends(value, number):
    found = value[0] + value[-1] + number
    if not value.readonly:
        value[0] = 100
    return found


@pytest.fixture
def memory():
    return FakeMemory()


class TestOfACall:
    @pytest.fixture
    def repeated(self, memory):
        return Repeated(memory, most=4 * LARGE)

    def test_the_first_time_it_is_sent_and_then_it_is_where_it_was_laid(self, repeated, memory):
        value = array()
        assert repeated.place(raw(value)) is None
        place = repeated.place(raw(value))
        assert place == memory.laid[0].place
        assert repeated.place(raw(value)) == place
        assert len(memory.laid) == 1

    def test_what_is_equal_is_not_the_same(self, repeated, memory):
        for value in [array(), array()]:
            assert repeated.place(raw(value)) is None
        assert memory.laid == []

    def test_small_ones_are_sent(self, repeated, memory):
        value = array(size=LARGE - 1)
        assert [repeated.place(raw(value)) for _ in range(3)] == [None] * 3

    def test_an_object_at_the_place_of_one_that_is_gone_is_another(self, repeated, memory):
        # each is gone before the next is made, most of them at the same address
        for fill in range(20):
            assert repeated.place(raw(array(fill))) is None
            gc.collect()
        assert memory.laid == []

    def test_what_nobody_can_tell_from_another_is_sent(self, repeated, memory):
        value = bytes(LARGE)
        assert [repeated.place(memoryview(value)) for _ in range(3)] == [None] * 3

    def test_no_more_is_laid_than_there_is_room_for(self, repeated, memory):
        kept = [array(fill, 2 * LARGE) for fill in range(3)]
        places = [[repeated.place(raw(value)) for value in kept] for _ in range(2)][1]
        assert [place is None for place in places] == [False, False, True]

    def test_the_first_is_laid_whatever_its_size(self, repeated, memory):
        value = array(size=5 * LARGE)
        assert [repeated.place(raw(value)) is None for _ in range(2)] == [True, False]

    def test_where_there_is_no_memory_it_is_sent(self, repeated, memory):
        memory.room = False
        value = array()
        assert [repeated.place(raw(value)) for _ in range(3)] == [None] * 3

    def test_at_the_end_nobody_finds_it(self, repeated, memory):
        value = array()
        place = [repeated.place(raw(value)) for _ in range(2)][1]
        repeated.close()
        assert memory.find(place) is None
        repeated.close()


class TestOfAWorker:
    def test_it_has_what_was_laid_for_each_task_anew(self, memory):
        laid = memory.lay([bytes(4)])
        places = Places(memory)
        first, second = (places.of(1)(laid.place) for _ in range(2))
        first[0] = 7
        assert bytes(second) == bytes(4)

    def test_what_another_call_had_is_let_go(self, memory):
        laid = memory.lay([bytes(4)])
        places = Places(memory)
        places.of(1)(laid.place)
        places.of(1)
        assert not laid.closed
        places.of(2)
        assert laid.closed

    @pytest.mark.parametrize("known", [True, False])
    def test_what_is_not_here_is_an_error_of_its_own(self, memory, known):
        places = Places(memory if known else None)
        with pytest.raises(BlindError, match="cannot map"):
            places.of(1)(b"nowhere")


class TestOfAPool:
    @pytest.fixture
    def master(self, memory):
        made = Master("near", "far", memory=memory)
        made.peers["near"].is_near = True
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

    def test_who_is_near_gets_it_once_and_who_is_far_each_time(self, master, memory):
        value = array()
        items = [(value, number) for number in range(6)]
        _, sink = master.call(sum_of_ends, items, mode=Mode.STARMAP, chunksize=1)
        near = self.does(master, "near", 3)
        # it holds one more
        far = self.does(master, "far", 2)
        assert [size > LARGE for size in near] == [True, False, False]
        assert [size > LARGE for size in far] == [True] * 2
        assert not sink.is_done
        assert len(memory.laid) == 1

    def test_it_is_gone_when_the_call_is_done(self, master, memory):
        value = array()
        _, sink = master.call(sum_of_ends, [(value, 1)] * 3, mode=Mode.STARMAP, chunksize=1)
        self.does(master, "near", 2)
        assert not memory.laid[0].closed
        self.does(master, "near", 1)
        assert sink.is_done
        assert memory.laid[0].closed

    def test_it_is_gone_when_the_pool_is(self, master, memory):
        value = array()
        master.call(sum_of_ends, [(value, 1)] * 3, mode=Mode.STARMAP, chunksize=1)
        self.does(master, "near", 2)
        master.dispatcher.end(RuntimeError("enough"))
        assert memory.laid[0].closed


class TestPlayedByATest:
    @pytest.fixture
    def link(self, memory):
        link = FakeLink()
        worker = Worker(link, TARGET, lambda: pytest.fail("it dialled again"), memory)
        thread = threading.Thread(target=worker.run)
        thread.start()
        link.next(Kind.ASK)
        yield link
        link.give(Kind.RETIRE)
        thread.join(20)
        assert not thread.is_alive()
        link.release()

    @pytest.fixture
    def call(self, memory):
        value = array(2)
        items = [(value, number) for number in range(3)]
        call = Call(1, sum_of_ends, Mode.STARMAP, Sink(), items=items, chunksize=None, retry=True)
        call.repeated = Repeated(memory)
        return call

    def give(self, link, call, index):
        mode, segments = call.encode(index, index + 1, near=True)
        head = Tasks(index + 1, call.number, index, index + 1, 1, mode, call.digest)
        link.give(Kind.TASKS, [head.encode(), *segments], index + 1)
        return mode

    def values(self, link):
        done, body = protocol.read_done(link.next(Kind.DONE).body)
        return Received(body, done.start, done.stop).of(done.start, done.stop)[0]

    def test_what_one_task_writes_the_next_does_not_see(self, link, call):
        link.give(Kind.FUNCTION, protocol.function(call.digest, call.function))
        modes = [self.give(link, call, index) for index in range(3)]
        assert [bool(mode & Mode.APART) for mode in modes] == [True] * 3
        assert [self.values(link) for _ in range(3)] == [[4], [5], [6]]

    def test_who_cannot_map_it_asks_for_what_lies_there(self, link, call, memory):
        link.give(Kind.FUNCTION, protocol.function(call.digest, call.function))
        self.give(link, call, 0)
        assert self.values(link) == [4]
        mode, segments = call.encode(1, 2, near=True)
        call.repeated.close()
        head = Tasks(2, call.number, 1, 2, 1, mode, call.digest)
        link.give(Kind.TASKS, [head.encode(), *segments], 2)
        missing = link.next(Kind.MISSING)
        assert (bytes(missing.body), missing.id) == (call.digest, protocol.LAID)
        assert protocol.read_entry(link.next(Kind.UNREAD).body) == 2
        mode, segments = call.encode_singly(1, 2)
        head = Tasks(2, call.number, 1, 2, 1, mode, call.digest)
        link.give(Kind.TASKS, [head.encode(), *segments], 2)
        assert self.values(link) == [5]
