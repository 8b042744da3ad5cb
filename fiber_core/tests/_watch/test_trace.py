"""Traces: a row a worker with what it ran, deaths as marks, and nothing lost when the file is."""

import itertools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fiber
from fiber._runtime import runtime
from fiber._watch.trace import Trace
from pool_tasks import die_once, fail_at, square

pytestmark = pytest.mark.usefixtures("shared_runtime")


@pytest.fixture
def pool():
    with fiber.Pool(2) as pool:
        yield pool
    pool.join()


def test_it_has_every_task_in_its_workers_row_and_marks_of_what_went_wrong(pool, tmp_path):
    pool.map(square, [0])
    with fiber.trace(tmp_path / "out.json"):
        pool.map(square, range(1000))
        assert pool.apply(die_once, (tmp_path / "died",)) == "survived"
        with pytest.raises(ValueError, match="bad 1"):
            pool.starmap(fail_at, [(1, 1)])
        with fiber.Executor(1) as executor:
            executor.submit(square, 3).result()
    pool.map(square, range(1000))

    events = json.loads((tmp_path / "out.json").read_text())
    tasks = [event for event in events if event["ph"] == "X"]
    counts = dict.fromkeys(("square", "die_once", "fail_at"), 0)
    for task in tasks:
        counts[task["name"]] += task["args"]["count"]
        assert task["dur"] >= 0
        assert min(task["args"][one] for one in ("waited", "held", "seconds")) >= 0
        assert min(task["args"][one] for one in ("bytes_in", "bytes_out")) > 0
    # those before and after it are not in it
    assert counts == {"square": 1001, "die_once": 1, "fail_at": 1}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert all(names[e["pid"], e["tid"]].startswith("PoolWorker-") for e in tasks)
    pools = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.partition("-")[0] for name in pools] == ["pool", "executor"]
    marks = [event for event in events if event["ph"] == "i"]
    (death,) = [mark for mark in marks if mark["args"].get("kind") == "death"]
    assert (death["args"]["again"], death["args"]["given_up"]) == (1, 0)
    assert "fail_at[0] failed: ValueError" in [mark["name"] for mark in marks]
    # no task of a row begins before the one before it has ended
    for row in names:
        mine = [task for task in tasks if (task["pid"], task["tid"]) == row]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in itertools.pairwise(mine))


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="the system has no disk that is always full"
)
def test_a_full_disk_ends_the_trace_and_costs_no_result(pool, caplog):
    with caplog.at_level(logging.WARNING, "fiber"), fiber.trace("/dev/full"):
        assert pool.map(square, range(1000)) == [x * x for x in range(1000)]

    (record,) = caplog.records
    assert "the trace ends, and its tasks go on: [Errno 28]" in record.getMessage()


def test_a_slow_disk_costs_events_and_no_task(pool, caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("fiber._watch.trace._MOST_WAITING", 0)
    with caplog.at_level(logging.WARNING, "fiber"), fiber.trace(tmp_path / "out.json"):
        assert pool.map(square, range(3)) == [0, 1, 4]

    assert "events are missing in" in caplog.records[-1].getMessage()
    assert len(json.loads((tmp_path / "out.json").read_text())) == 1


def test_nothing_is_noted_before_and_after(pool, tmp_path):
    (group,) = [part for part in runtime.current().parts if hasattr(part, "dispatcher")]
    assert group.dispatcher.tracer is None
    with fiber.trace(tmp_path / "out.json") as trace:
        assert isinstance(trace, Trace)
        assert group.dispatcher.tracer is not None
    assert group.dispatcher.tracer is None
    assert runtime.current().traces == []
    trace.close()


def test_what_cannot_be_written_is_told_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        fiber.trace(tmp_path / "none" / "out.json")


PROGRAM = """
import os, signal, sys
import fiber

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        print(pool.map(abs, [-1, 2]))
"""


@pytest.mark.parametrize("place, code", [("out.json", 0), ("none/out.json", 1)])
def test_the_setting_traces_the_program_from_its_first_pool(tmp_path, place, code):
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {**os.environ, "FIBER_TRACE": str(tmp_path / place)}

    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == code, done.stderr
    if code:
        assert f"setting 'trace': {tmp_path / place} cannot be written" in done.stderr
    else:
        events = json.loads((tmp_path / place).read_text())
        assert sum(event["args"]["count"] for event in events if event["ph"] == "X") == 2
