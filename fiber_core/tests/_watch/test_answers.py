"""What a program answers at its status socket besides its status: a timeline, and logs of its workers."""

import itertools
import time
from unittest.mock import Mock

import pytest

import fiber
from fiber._runtime import runtime
from fiber._watch import status as module
from fiber._watch.status import Asker, GroupTimeline, Timeline
from fiber.exceptions import FiberError
from pool_tasks import fail_at, square
from waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("shared_runtime")


def say(number):
    print(f"number {number}", flush=True)
    return number


@pytest.fixture
def pool():
    with fiber.Pool(2) as pool:
        # both are there
        pool.map(square, range(50))
        yield pool
    pool.join()


@pytest.fixture
def asker():
    with Asker(runtime.current().directory, PATIENCE) as asker:
        yield asker


def dispatcher():
    return next(part.dispatcher for part in runtime.current().parts if hasattr(part, "dispatcher"))


def test_a_timeline_has_what_was_run_since_the_last_look_and_ends_with_the_connection(pool, asker):
    assert asker.ask("timeline")["spans"] == []

    with pytest.raises(ValueError):
        pool.starmap(fail_at, [(number, 3) for number in range(5)], chunksize=1)
    until(lambda: fiber.status().pools[0].running == 0)
    first, second = asker.ask("timeline"), asker.ask("timeline")

    assert {(span[0], span[2]) for span in first["spans"]} == {(pool_name(), "fail_at")}
    assert sum(span[5] for span in first["spans"]) == 5
    assert sum(span[6] for span in first["spans"]) == 1
    assert all(span[3] <= span[4] <= first["now"] for span in first["spans"])
    assert {span[1] for span in first["spans"]} <= {
        worker.name for worker in fiber.status().pools[0].workers
    }
    assert (first["missing"], second["spans"]) == (0, [])
    asker.close()
    until(lambda: dispatcher().tracer is None)


def pool_name():
    return fiber.status().pools[0].name


def test_a_pool_that_comes_later_is_in_it_and_a_trace_does_not_end_it(asker, tmp_path):
    asker.ask("timeline")
    with fiber.trace(tmp_path / "trace.json"), fiber.Pool(1) as pool:
        pool.map(square, range(3))
    with fiber.Pool(1) as other:
        other.map(square, range(4))
        names = {one.name for one in fiber.status().pools}
        spans = asker.ask("timeline")["spans"]
    pool.join()
    other.join()

    assert sum(span[5] for span in spans) == 7
    assert names < {span[0] for span in spans}
    assert '"square"' in (tmp_path / "trace.json").read_text()


class Counting:
    """A timeline's group part, with reports of tasks that took so many seconds."""

    def __init__(self, monkeypatch, most=100):
        self.now = 0.0
        monkeypatch.setattr(module, "_MOST_SPANS", most)
        # that module's alone: other threads of the program wait by the real one
        clock = Mock(wraps=time, monotonic=lambda: self.now)
        monkeypatch.setattr(module, "time", clock)
        self.timeline = Timeline(runtime.current())
        self.part = GroupTimeline(self.timeline, type("Group", (), {"name": "pool-1"})())
        self._entries = itertools.count(1)

    def report(self, seconds, pause=0.0):
        self.now += seconds + pause
        done = type("Done", (), {"entry": 1, "start": 0, "stop": 1, "seconds": seconds})()
        done.credits = 1
        self.part.done("w", done, 0)


@pytest.mark.parametrize(
    "seconds, pause, expected",
    [
        pytest.param(0.01, 0.001, 2, id="short ones are joined"),
        pytest.param(0.4, 0.0, 100, id="long ones stay apart"),
        pytest.param(0.01, 0.2, 100, id="a pause stays a pause"),
    ],
)
def test_spans_are_as_many_as_can_be_told_apart(monkeypatch, pool, seconds, pause, expected):
    counting = Counting(monkeypatch)
    for _ in range(100 if expected == 100 else 90):
        counting.report(seconds, pause)
    counting.part.cut()

    found = counting.timeline.look()
    counting.timeline.close()

    assert len(found["spans"]) == expected
    assert sum(span[5] for span in found["spans"]) in {90, 100}


def test_what_nobody_fetches_is_bounded_and_what_was_left_out_is_counted(monkeypatch, pool):
    counting = Counting(monkeypatch, most=10)
    for _ in range(30):
        counting.report(0.4)

    found = counting.timeline.look()
    counting.timeline.close()

    assert len(found["spans"]) == 10
    assert found["missing"] == 19


def test_pools_that_are_over_are_told_of_once_more_and_forgotten():
    timeline = Timeline(runtime.current())
    for _ in range(3):
        with fiber.Pool(1) as pool:
            pool.map(square, [1])
        pool.join()

    found = timeline.look()
    left = timeline._traces.noted()
    timeline.close()

    assert len({span[0] for span in found["spans"]}) == 3
    assert left == []


def test_the_last_lines_of_a_worker_are_told_by_its_job(asker):
    with fiber.Pool(1) as pool:
        pool.map(say, range(5))
        (worker,) = fiber.status().pools[-1].workers
        until(lambda: len(asker.ask("log", job=worker.job)["lines"]) == 5)
        assert asker.ask("log", job=worker.job, lines=2)["lines"] == ["number 3", "number 4"]
    pool.join()
    with pytest.raises(FiberError, match=f"that this program has now is job '{worker.job}'"):
        asker.ask("log", job=worker.job)
    with pytest.raises(FiberError, match="ask for 'status', 'timeline' or 'log'"):
        asker.ask("secrets")
