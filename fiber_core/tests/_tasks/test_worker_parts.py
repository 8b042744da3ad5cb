"""What a worker is made of: one entry as it runs, the functions it keeps, and its control reader."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks import protocol
from fiber._tasks import worker as module
from fiber._tasks.protocol import ReceivedOutcomes, Tasks
from fiber._tasks.worker import Batch, ControlReader, FunctionCache
from fiber._wire import codec, frames
from tasks_world import FakePayload
from waiting import until
from wire_world import in_thread

# One entry: which items run, which are handed back, when outcomes are sent.

LONG_UNIT = 0.05


def tasks(start=0, stop=10, chunk=1):
    return Tasks(5, 1, start, stop, chunk, 0, bytes(16))


@pytest.fixture
def clock(monkeypatch):
    """A clock that tasks move."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock.now)
    return clock


class Run:
    """A batch and the messages it sent."""

    def __init__(self, head):
        self.head = head
        self.batch = Batch(head, self._send, lambda _: None, LONG_UNIT)
        self.reports = []

    def __call__(self, function):
        self.batch.run(function, range(self.head.start, self.head.stop))

    def _send(self, number, segments):
        assert number == 0
        done, body = protocol.read_done(memoryview(bytearray().join(segments)))
        values, errors = ReceivedOutcomes(body, done.start, done.stop).of(done.start, done.stop)
        self.reports.append((done, values, errors))

    @property
    def ranges(self):
        return [(done.start, done.stop, done.credits) for done, _, _ in self.reports]

    @property
    def values(self):
        return [value for _, values, _ in self.reports for value in values]


@pytest.mark.parametrize(
    "count,seconds,stops",
    [
        pytest.param(3, 0.01, [1, 2, 3], id="longer ones one by one"),
        pytest.param(10, 0.0006, [4, 8, 10], id="none waits longer than two milliseconds"),
        # so that messages are few
        pytest.param(64, 2**-10, [3, 6, 12, 24, 48, 64], id="as long as the entry has run"),
    ],
)
def test_results_wait_for_others(clock, count, seconds, stops):
    run = Run(tasks(0, count))

    def task(n):
        clock.now += seconds

    run(task)
    assert [stop for _, stop, _ in run.ranges] == stops
    assert [credits_ for _, _, credits_ in run.ranges] == [0] * (len(stops) - 1) + [1]
    took = [(done.stop - done.start) * seconds for done, _, _ in run.reports]
    assert [done.seconds for done, _, _ in run.reports] == pytest.approx(took)


def test_a_unit_is_never_handed_over_in_parts(clock):
    run = Run(tasks(0, 6, chunk=3))

    def function(n):
        run.batch.flush()
        return n

    run(function)
    assert [(start, stop) for start, stop, _ in run.ranges] == [(0, 3), (3, 6)]


def test_many_bytes_of_short_results_do_not_wait(clock):
    run = Run(tasks(0, 6))
    run(lambda n: [bytes(100_000)])
    assert [stop for _, stop, _ in run.ranges] == [3, 6]


def test_a_result_that_goes_on_changing_is_reported_as_it_was(clock):
    state = []
    run = Run(tasks(0, 4))
    run(lambda n: state.append(n) or state)
    assert run.ranges == [(0, 4, 1)]
    assert run.values == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    "stop,chunk,at,kept",
    [
        pytest.param(20, 1, 12, 13, id="what has not begun"),
        pytest.param(20, 4, 15, 18, id="whole units"),
        pytest.param(15, 4, 14, 15, id="a short last unit"),
    ],
)
def test_units_that_have_begun_are_kept_and_others_handed_back(clock, stop, chunk, at, kept):
    run = Run(tasks(10, stop, chunk=chunk))

    def function(n):
        if n == at:
            assert run.batch.hand_back() == kept
        return n

    run(function)
    assert run.ranges == [(10, kept, 1)]
    assert run.values == list(range(10, kept))


def test_an_item_either_runs_or_is_handed_back_in_any_order():
    """What ran and what was handed back meet exactly, at any moment of the hand-back."""
    for _ in range(200):
        current = Run(tasks(0, 1000)).batch
        ran = []
        begun = threading.Event()

        def work(current=current, ran=ran, begun=begun):
            for n in range(1000):
                if not current.may_run(n):
                    break
                ran.append(n)
                begun.set()

        ended = in_thread(work)
        begun.wait()
        kept = current.hand_back()
        ended()
        assert ran == list(range(kept))


class Between(int):
    """A number whose first comparison calls a function."""

    action = None

    def __lt__(self, other):
        action, Between.action = Between.action, None
        answer = int(self) < other
        if action is not None:
            action()
        return answer


def test_a_worker_that_read_the_limit_just_before_keeps_the_item():
    current = Run(tasks(0, 10)).batch
    kept = []
    # the control reader acts between the read of the limit and the first step of the item
    Between.action = lambda: kept.append(current.hand_back())
    assert current.may_run(Between(4))
    assert kept == [5]


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 29))
def test_every_item_is_reported_once_whatever_fails(count, chunk, bad):
    run = Run(tasks(0, count, chunk=chunk))

    def function(n):
        if n == bad:
            raise KeyError(n)
        return n

    run(function)
    assert [index for start, stop, _ in run.ranges for index in range(start, stop)] == list(
        range(count)
    )
    skipped = range(bad, min(count, bad - bad % chunk + chunk)) if bad < count else ()
    assert run.values == [None if n in skipped else n for n in range(count)]
    assert [credits_ for _, _, credits_ in run.ranges][-1] == 1


def test_before_the_next_unit_somebody_looks_what_came_during_a_long_one(clock):
    looks = []
    head = tasks(0, 4)
    batch = Batch(head, lambda *_: None, lambda _: looks.append(clock.now), LONG_UNIT)

    def function(n):
        clock.now += 1.0 if n in (1, 3) else 0.001

    batch.run(function, range(4))
    assert looks == pytest.approx([1.001])
    assert batch.was_long


KB = 1024


def pickled(function):
    return frames.joined(codec.dumps(function))


def closure(value):
    return lambda: value


@pytest.mark.parametrize("shared", [False, True], ids=["sent", "mapped"])
def test_each_call_has_a_function_of_its_own_with_arrays_that_can_be_written_to(shared):
    functions, content = FunctionCache(), pickled(closure([np.zeros(10_000)]))
    functions.put(b"f", FakePayload(b"place", content) if shared else content)
    assert functions.get(1) is None
    first, second = functions.load(1, b"f"), functions.load(2, b"f")
    assert functions.get(1) is first
    first()[0][:] = 7
    first().append("more")
    assert (len(first()), first()[0][0]) == (2, 7)
    assert (len(second()), second()[0][0]) == (1, 0)


def test_the_least_recently_used_function_is_dropped_first():
    functions = FunctionCache(pickled=250 * KB)
    for name in (b"a", b"b"):
        functions.put(name, pickled(closure(bytes(100 * KB))))
    functions.load(1, b"a")
    functions.put(b"c", pickled(closure(bytes(100 * KB))))
    assert [name in functions for name in (b"a", b"b", b"c")] == [True, False, True]


def test_one_that_is_larger_than_the_cache_is_kept_all_the_same():
    functions = FunctionCache(pickled=KB)
    functions.put(b"big", pickled(closure(bytes(100 * KB))))
    assert len(functions.load(1, b"big")()) == 100 * KB


def test_many_small_ones_are_bounded_too():
    functions = FunctionCache(pickled=100 * KB)
    names = [str(number).encode() for number in range(1000)]
    for name in names:
        functions.put(name, b"x")
    assert sum(name in functions for name in names) < 100


def test_few_large_functions_stay_ready_and_many_small_ones():
    functions = FunctionCache(ready=250 * KB)
    functions.put(b"big", pickled(closure(bytes(100 * KB))))
    functions.put(b"small", pickled(closure(1)))
    for call in range(4):
        functions.load(call, b"big")
    assert functions.get(0) is None
    assert functions.get(3) is not None
    for call in range(100, 130):
        functions.load(call, b"small")
    assert all(functions.get(call) is not None for call in range(100, 130))


# The control reader reads a worker's link while a task takes long, and only then.

INTERVAL = 0.02


class Watched:
    """A link's descriptors, the reader that watches them, and what it noticed."""

    def __init__(self):
        self.fds = os.pipe()
        self.seen = []
        self.noticed, self.ticked = threading.Event(), threading.Event()
        self.reader = ControlReader(self._on_message, lambda _: self.ticked.set(), INTERVAL)

    def _on_message(self, subject):
        os.read(self.fds[0], 1)
        self.seen.append(subject)
        self.noticed.set()

    def begin(self, subject):
        self.reader.watch(subject, self.fds[:1])

    def send(self):
        os.write(self.fds[1], b"x")


@pytest.fixture
def watched():
    watched = Watched()
    yield watched
    watched.reader.close()
    for fd in watched.fds:
        os.close(fd)


def test_nothing_is_attended_to_once_the_subject_is_done(watched):
    watched.begin("first")
    assert watched.ticked.wait(20)
    watched.reader.rest()
    watched.send()
    until(lambda: watched.reader._idle)
    assert watched.seen == []


def test_where_no_thread_is_started_a_task_goes_on_and_the_next_one_is_watched(
    watched, monkeypatch
):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        watched.begin("first")
    watched.reader.rest()
    watched.begin("second")
    watched.send()
    assert watched.noticed.wait(20)
    assert watched.seen == ["second"]


def test_a_reader_without_a_thread_is_closed(watched, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    watched.begin("first")
    watched.reader.close()


def test_subjects_may_follow_one_another_at_any_pace(watched):
    for number in range(2000):
        watched.begin(number)
        watched.reader.rest()
    watched.begin("last")
    watched.send()
    assert watched.noticed.wait(20)
    assert watched.seen == ["last"]
