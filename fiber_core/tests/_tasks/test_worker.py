"""A worker in a thread, and a test that plays its pool."""

import threading

import pytest

from fiber._tasks import protocol
from fiber._tasks import worker as module
from fiber._tasks.call import Call
from fiber._tasks.protocol import Mode, ReceivedOutcomes, Tasks
from fiber._tasks.shared_payload import SHARE_THRESHOLD, RepeatedBuffers
from fiber._tasks.worker import DescriptorsLostError, Worker
from fiber._wire.frames import Kind
from fiber.exceptions import PeerLostError, StartError
from fiber.model import Timing
from pool_tasks import Refuses, square
from tasks_world import TARGET, FakeLink, FakePayloadStore, OutOfBand, Sink
from waiting import until

go_on = threading.Event()
begun = threading.Event()
#: what a task returns again and again
counted = []
#: links whose descriptors a task takes
taken_from = []


def sum_of_ends(value, number):
    found = value[0] + value[-1] + number
    if not value.readonly:
        value[0] = 100
    return found


def wait_on_three(x):
    if x == 3:
        begun.set()
        assert go_on.wait(20)
    return x


def count_up(x):
    counted.append(x)
    return counted


def raise_lost(_):
    raise PeerLostError("a queue's owner is gone")


def take_on_two(x):
    if x == 2:
        taken_from[0].is_intact = False
    return wait_on_three(x)


class LostInside:
    def __reduce__(self):
        return raise_lost, (1,)


class Pool:
    """The pool of a worker, played by the tests."""

    def __init__(self, timing, store):
        self.links = [FakeLink()]
        self.error = None
        self.entries = 0
        self.dialled = threading.Event()
        self.refuses = False
        self.worker = Worker(self.links[0], TARGET, self._redial, store, timing=timing)
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error

    def _redial(self):
        if self.refuses:
            raise StartError("nobody there")
        self.links.append(FakeLink())
        self.dialled.set()
        return self.links[-1]

    @property
    def link(self):
        return self.links[-1]

    def asked(self, credits_):
        assert protocol.read_ask(self.link.next(Kind.ASK).body) == credits_

    def run(self, function, items, *, mode=Mode.MAP, number=1):
        """Give all items of a new call; the call and the number of the entry."""
        call = self.call(function, items, mode=mode, number=number)
        self.teach(call)
        return call, self.give(call)

    def call(self, function, items, *, mode=Mode.MAP, number=1):
        return Call(number, function, mode, Sink(), items=items, chunksize=None, retry=True)

    def teach(self, call):
        self.link.deliver(Kind.FUNCTION, protocol.function(call.digest, call.function))

    def give_together(self, *calls):
        """Give all items of some calls in one message; the numbers of the entries."""
        bodies, numbers = [], []
        for call in calls:
            mode, segments = call.encode(0, call.count)
            self.entries += 1
            numbers.append(self.entries)
            more = call is not calls[-1]
            head = Tasks(self.entries, call.number, 0, call.count, 1, mode, call.digest, more)
            bodies.append([head.encode(), *segments])
        self.link.deliver(Kind.TASKS, protocol.together(bodies), 0)
        return numbers

    def give(self, call, start=0, stop=None, *, singly=False, entry=None, shares_memory=False):
        stop = call.count if stop is None else stop
        if singly:
            mode, segments = call.encode_singly(start, stop)
        else:
            mode, segments = call.encode(start, stop, shares_memory=shares_memory)
            assert mode & Mode.APART or not shares_memory
        if entry is None:
            self.entries += 1
            entry = self.entries
        head = Tasks(entry, call.number, start, stop, 1, mode, call.digest)
        self.link.deliver(Kind.TASKS, [head.encode(), *segments], entry)
        return entry

    def done(self):
        done, body = protocol.read_done(self.link.next(Kind.DONE).body)
        values, errors = ReceivedOutcomes(body, done.start, done.stop).of(done.start, done.stop)
        return done, [errors.get(n, v) for n, v in enumerate(values, done.start)]

    def done_up_to(self, stop):
        """Reports until that item, however many a slow machine makes of them; last credits, all values."""
        gathered = []
        while True:
            done, values = self.done()
            gathered += values
            if done.stop == stop:
                return done.credits, gathered
            assert done.stop < stop
            assert done.credits == 0

    def missing(self):
        """What the worker requests next: a digest, and whether it cannot map it."""
        message = self.link.next(Kind.MISSING)
        return bytes(message.body), message.id

    def revoke(self, entry):
        self.link.deliver(Kind.REVOKE, [protocol.entry(entry)])

    def kept(self):
        """The worker's answer: an entry, and one past the last item that it keeps."""
        return protocol.read_kept(self.link.next(Kind.KEPT).body)

    def join(self):
        """Wait for the worker to end; what it raised."""
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.error


@pytest.fixture
def timing():
    return Timing()


@pytest.fixture
def store():
    return None


@pytest.fixture
def pool(timing, store):
    go_on.clear()
    begun.clear()
    pool = Pool(timing, store)
    pool.thread.start()
    pool.asked(2)
    yield pool
    go_on.set()
    if pool.thread.is_alive():
        # whatever was done to it, it goes when it is told to
        pool.link.deliver(Kind.RETIRE)
        assert pool.join() is None
    for link in pool.links:
        link.release()


def test_what_comes_while_it_waits_for_a_function_keeps_its_order(pool):
    first, second = pool.call(square, [3]), pool.call(abs, [-5], number=2)
    pool.give(first)
    pool.link.next(Kind.MISSING)
    pool.teach(second)
    pool.give(second)
    pool.teach(first)
    assert pool.done()[1] == [9]
    assert pool.done()[1] == [5]


def test_a_function_whose_call_is_over_is_not_run_and_not_remembered(pool):
    call = pool.call(square, [3])
    pool.give(call)
    pool.link.next(Kind.MISSING)
    pool.link.deliver(Kind.FUNCTION, protocol.function(call.digest))
    assert pool.done()[1] == [None]
    later = pool.call(square, [4], number=2)
    pool.give(later)
    assert pool.missing() == (call.digest, 0)
    pool.teach(later)
    assert pool.done()[1] == [16]


def test_a_function_that_cannot_be_loaded_is_the_error_of_each_item(pool):
    pool.run(Refuses(), [1, 2])
    done, values = pool.done()
    assert [type(error) for error in values] == [ValueError, ValueError]
    assert done.credits == 1


@pytest.mark.parametrize(
    "item,error", [(Refuses(), ValueError), ((i for i in "x"), TypeError)], ids=["read", "sent"]
)
def test_alone_what_cannot_be_read_or_sent_is_the_error_of_its_item(pool, item, error):
    pool.run(abs, [item])
    assert isinstance(pool.done()[1][0], error)


@pytest.mark.parametrize("items", [[1], [LostInside()]], ids=["in the task", "in its argument"])
def test_the_loss_of_another_connection_is_the_tasks_error_not_ours(pool, items):
    pool.run(raise_lost, items)
    assert isinstance(pool.done()[1][0], PeerLostError)
    assert len(pool.links) == 1


def test_it_dials_again_when_its_connection_ends_and_its_calls_begin_anew(pool):
    seen = []
    call, _ = pool.run(lambda x: seen.append(x) or len(seen), [5, 5])
    assert pool.done_up_to(2) == (1, [1, 2])
    pool.link.lose()
    assert pool.dialled.wait(20)
    pool.asked(2)
    pool.give(call)
    assert pool.done_up_to(2) == (1, [1, 2])


def test_it_ends_when_redialling_fails(pool):
    pool.refuses = True
    pool.link.lose()
    assert isinstance(pool.join(), StartError)


class TestLostDescriptors:
    """A task has closed them, or has put other files in their place."""

    def test_a_worker_ends_and_writes_no_result_into_somebody_elses_file(self, pool):
        pool.run(wait_on_three, [3])
        assert begun.wait(20)
        pool.link.is_intact = False
        go_on.set()
        assert isinstance(pool.join(), DescriptorsLostError)
        assert pool.link.sent.empty()
        assert len(pool.links) == 1

    def test_a_worker_ends_where_only_the_end_of_its_connection_is_seen(self, pool):
        pool.link.is_intact = False
        pool.link.lose()
        assert isinstance(pool.join(), DescriptorsLostError)
        assert len(pool.links) == 1

    def test_a_worker_does_not_wait_for_what_cannot_come(self, pool):
        """Where its function was dropped, for one."""
        call = pool.call(square, [3])
        pool.link.is_intact = False
        pool.give(call)
        assert isinstance(pool.join(), DescriptorsLostError)

    def test_results_that_wait_during_a_long_task_are_not_written_either(self, pool):
        taken_from[:] = pool.links
        pool.run(take_on_two, list(range(5)))
        assert begun.wait(20)
        # on a busy machine those of earlier tasks have been
        written = pool.link.sent.qsize()
        go_on.set()
        assert isinstance(pool.join(), DescriptorsLostError)
        assert pool.link.sent.qsize() == written


def test_what_has_not_begun_of_a_long_entry_is_handed_back_and_what_is_done_comes_at_once(pool):
    _, entry = pool.run(wait_on_three, list(range(8)))
    assert begun.wait(20)
    assert pool.done_up_to(3) == (0, [0, 1, 2])
    pool.revoke(entry)
    assert pool.kept() == (entry, 4)
    go_on.set()
    credits, values = pool.done_up_to(4)
    assert values == [3]
    if not credits:
        # on a busy machine the end of the entry comes with its last result
        done, values = pool.done()
        assert (done.start, done.stop, values) == (4, 4, [])
        credits = done.credits
    assert credits == 1


def test_a_worker_tells_of_its_memory_when_it_is_asked_in_a_task_and_between_two(pool):
    def seen():
        return protocol.read_seen(pool.link.next(Kind.SEEN).body)

    pool.link.deliver(Kind.LOOK)
    assert seen() > 2**20
    pool.run(wait_on_three, list(range(4)))
    assert begun.wait(20)
    pool.done_up_to(3)
    pool.link.deliver(Kind.LOOK)
    assert seen() > 2**20
    go_on.set()
    pool.done_up_to(4)


def test_an_entry_behind_a_long_one_is_handed_back_whole_with_its_credit(pool):
    call = pool.call(wait_on_three, list(range(8)))
    pool.teach(call)
    pool.give(call, 2, 5)
    behind = pool.give(call, 5, 8)
    assert begun.wait(20)
    pool.done_up_to(3)
    pool.revoke(behind)
    pool.asked(1)
    assert pool.kept() == (behind, 5)
    go_on.set()
    assert pool.done_up_to(5) == (1, [3, 4])


class TestEntriesThatGoTogether:
    @pytest.fixture
    def calls(self, pool, monkeypatch):
        """Four of them, of which the third waits for the test; a slow machine holds results back, too."""
        monkeypatch.setattr(module, "_MAX_DELAY", 1000.0)
        functions = [(square, 2), (abs, -5), (wait_on_three, 3), (square, 4)]
        calls = [pool.call(one, [item], number=at) for at, (one, item) in enumerate(functions, 1)]
        for call in calls:
            pool.teach(call)
        return calls

    def reports(self, pool):
        """What a message reports, as entry, credits and result."""
        message = pool.link.next(Kind.DONE)
        dones, received = protocol.read_all_done(message.id, message.body)
        values, errors = received.of(0, len(dones))
        assert not errors
        return [
            (done.entry, done.credits, value) for done, value in zip(dones, values, strict=True)
        ]

    def test_their_results_come_together_with_the_credit(self, pool, calls):
        go_on.set()
        first, *_, last = pool.give_together(*calls)
        assert (first, last) == (1, 4)
        assert self.reports(pool) == [(1, 0, 4), (2, 0, 5), (3, 0, 3), (4, 1, 16)]

    def test_results_do_not_wait_for_a_long_one_whose_followers_are_handed_back(self, pool, calls):
        pool.give_together(*calls)
        assert begun.wait(20)
        assert self.reports(pool) == [(1, 0, 4), (2, 0, 5)]
        pool.revoke(4)
        pool.asked(1)
        assert pool.kept() == (4, 0)
        go_on.set()
        # it does not wait for what does not come any more
        assert self.reports(pool) == [(3, 0, 3)]

    def test_what_is_done_is_reported_before_it_is_kept(self, pool, calls):
        pool.give_together(*calls)
        assert begun.wait(20)
        pool.revoke(2)
        assert self.reports(pool) == [(1, 0, 4), (2, 0, 5)]
        assert pool.kept() == (2, 2**63)
        go_on.set()
        assert self.reports(pool) == [(3, 0, 3), (4, 1, 16)]

    def test_a_result_that_the_next_task_would_change_comes_as_it_was(self, pool, monkeypatch):
        monkeypatch.setattr(module, "_MAX_DELAY", 1000.0)
        calls = [pool.call(count_up, [3], number=at) for at in (1, 2)]
        pool.teach(calls[0])
        counted.clear()
        pool.give_together(*calls)
        assert self.reports(pool) == [(1, 0, [3]), (2, 1, [3, 3])]


class TestLongUnits:
    """The control reader does not see what comes, so the main thread looks before it goes on."""

    @pytest.fixture
    def timing(self):
        return Timing(unread=0.0)

    def test_an_entry_that_came_during_a_long_task_is_not_begun_once_it_was_asked_back(self, pool):
        call = pool.call(wait_on_three, list(range(8)))
        pool.teach(call)
        pool.give(call, 3, 4)
        assert begun.wait(20)
        # nobody looks at the connection while one task alone runs
        behind = pool.give(call, 5, 8)
        pool.revoke(behind)
        go_on.set()
        assert pool.done_up_to(4) == (1, [3])
        pool.asked(1)
        assert pool.kept() == (behind, 5)

    def test_a_task_that_lets_no_other_thread_run_keeps_nothing_behind_it(self, pool, monkeypatch):
        monkeypatch.setattr(pool.worker._control_reader, "watch", lambda *_: None)
        call = pool.call(wait_on_three, list(range(8)))
        pool.teach(call)
        entry = pool.give(call, 3, 8)
        assert begun.wait(20)
        pool.revoke(entry)
        go_on.set()
        while (sent := pool.link.sent.get(timeout=20)).kind is Kind.DONE:
            pass
        assert protocol.read_kept(sent.body) == (entry, 4)


def test_what_is_done_already_is_kept(pool):
    _, entry = pool.run(square, [1])
    pool.done()
    pool.revoke(entry)
    assert pool.kept() == (entry, 2**63)


def test_messages_that_came_during_a_long_entry_are_taken_afterwards_in_order(pool):
    pool.run(wait_on_three, list(range(5)))
    assert begun.wait(20)
    pool.done_up_to(3)
    pool.run(abs, [-7], number=2)
    until(lambda: len(pool.worker._inbox) == 2)
    go_on.set()
    assert pool.done_up_to(5) == (1, [3, 4])
    assert pool.done()[1] == [7]


def test_a_connection_that_ends_during_a_long_entry_is_found_out_after_it(pool):
    pool.run(wait_on_three, list(range(5)))
    assert begun.wait(20)
    pool.done_up_to(3)
    pool.link.lose()
    go_on.set()
    assert pool.dialled.wait(20)
    pool.asked(2)


class TestSharedMemory:
    """Functions and arguments that a worker of the same host maps."""

    @pytest.fixture
    def store(self):
        return FakePayloadStore()

    @pytest.fixture
    def call(self, pool):
        return pool.call(square, [4])

    def locate(self, pool, call, locator):
        pool.link.deliver(Kind.FUNCTION, protocol.function(call.digest, [locator]), protocol.SHARED)

    def test_it_maps_a_function_and_requests_one_that_it_had_to_forget(self, pool, store, call):
        self.locate(pool, call, store.write(call.function).locator)
        pool.give(call)
        assert pool.done()[1] == [16]
        pool.link.deliver(Kind.FUNCTION, protocol.function(call.digest))
        again = pool.call(square, [4], number=2)
        pool.give(again)
        assert pool.missing() == (call.digest, 0)
        pool.teach(again)
        assert pool.done()[1] == [16]

    @pytest.mark.parametrize("requested", [False, True])
    def test_a_function_that_it_does_not_find_is_sent_to_it(self, pool, call, requested):
        if requested:
            pool.give(call)
            assert pool.missing() == (call.digest, 0)
        self.locate(pool, call, b"nowhere")
        if not requested:
            pool.give(call)
        assert pool.missing() == (call.digest, protocol.SHARED)
        pool.teach(call)
        assert pool.done()[1] == [16]

    def test_the_bytes_of_an_argument_that_it_cannot_map_are_requested(
        self, pool, store, monkeypatch
    ):
        array = OutOfBand(bytes([2]) * SHARE_THRESHOLD)
        call = pool.call(sum_of_ends, [(array, number) for number in range(3)], mode=Mode.STARMAP)
        call.repeated_buffers = RepeatedBuffers(store)
        pool.teach(call)
        pool.give(call, 0, 1, shares_memory=True)
        assert pool.done()[1] == [4]
        monkeypatch.setattr(store, "find", lambda _: None)
        entry = pool.give(call, 1, 2, shares_memory=True)
        assert pool.missing() == (call.digest, protocol.SHARED)
        assert protocol.read_entry(pool.link.next(Kind.UNREAD).body) == entry
        pool.give(call, 1, 2, entry=entry, singly=True)
        assert pool.done()[1] == [5]
