"""One entry on a worker: which items run, which are handed back, when outcomes are sent."""

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._tasks import protocol
from fiber._tasks import worker as module
from fiber._tasks.outcomes import ReceivedOutcomes
from fiber._tasks.protocol import Tasks
from fiber._tasks.worker import Batch, RunningEntry

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
        self.batch = Batch(head, self._send, lambda: None, LONG_UNIT)
        self.current = self.batch.current
        self.reports = []

    def __call__(self, function):
        self.batch.run(function, range(self.head.start, self.head.stop))

    def _send(self, segments):
        done, body = protocol.read_done(memoryview(bytearray().join(segments)))
        values, errors = ReceivedOutcomes(body, done.start, done.stop).of(done.start, done.stop)
        self.reports.append((done, values, errors))

    @property
    def ranges(self):
        return [(done.start, done.stop, done.credits) for done, _, _ in self.reports]

    @property
    def values(self):
        return [value for _, values, _ in self.reports for value in values]


def test_short_tasks_are_reported_together_with_the_credit_for_more(clock):
    run = Run(tasks(3, 10))
    run(lambda n: n * n)
    assert run.ranges == [(3, 10, 1)]
    assert run.values == [n * n for n in range(3, 10)]


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


def test_what_was_done_before_a_long_task_can_be_handed_over_during_it(clock):
    run = Run(tasks(0, 6))

    def function(n):
        clock.now += 0.0001
        if n == 3:
            clock.now += 5
            run.batch.flush()
            run.batch.flush()
            assert run.ranges == [(0, 3, 0)]
        return n

    run(function)
    assert run.ranges == [(0, 3, 0), (3, 4, 0), (4, 6, 1)]
    assert [done.seconds for done, _, _ in run.reports] == pytest.approx([0.0003, 5.0001, 0.0002])
    assert run.values == list(range(6))


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
            assert run.current.hand_back() == kept
        return n

    run(function)
    assert run.ranges == [(10, kept, 1)]
    assert run.values == list(range(10, kept))


def test_handed_back_once_more_nothing_changes():
    current = RunningEntry(tasks(0, 10))
    assert current.may_run(0)
    assert current.hand_back() == 1
    assert not current.may_run(1)
    assert current.hand_back() == 1
    assert current.limit == 1


def test_an_item_either_runs_or_is_handed_back_in_any_order():
    """What ran and what was handed back meet exactly, at any moment of the hand-back."""
    for _ in range(200):
        current = RunningEntry(tasks(0, 1000))
        ran, kept = [], []
        begun = threading.Event()

        def work(current=current, ran=ran, begun=begun):
            for n in range(1000):
                if not current.may_run(n):
                    break
                ran.append(n)
                begun.set()

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        kept.append(current.hand_back())
        thread.join()
        assert ran == list(range(kept[0]))


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
    current = RunningEntry(tasks(0, 10))
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
    batch = Batch(head, lambda _: None, lambda: looks.append(clock.now), LONG_UNIT)

    def function(n):
        clock.now += 1.0 if n in (1, 3) else 0.001

    batch.run(function, range(4))
    assert looks == pytest.approx([1.001])
    assert batch.was_long


def test_what_is_handed_back_at_that_look_does_not_begin(clock):
    ran = []

    def look():
        batch.current.hand_back()

    batch = Batch(tasks(0, 4), lambda _: None, look, LONG_UNIT)

    def function(n):
        ran.append(n)
        clock.now += 1.0

    batch.run(function, range(4))
    assert ran == [0]
    assert not batch.was_long
