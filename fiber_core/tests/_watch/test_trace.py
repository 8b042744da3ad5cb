"""Traces: a row a worker with what it ran, deaths as marks, and nothing lost when the file is."""

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fiber
from fiber._runtime import runtime
from fiber._watch.trace import Trace
from fiber.cli.trace import analyse, by_pool, read
from pool_tasks import die_once, fail_at, square

pytestmark = pytest.mark.usefixtures("shared_runtime")


def ran(folder, program, place):
    """Run a program with a trace in a folder, to its end."""
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, folder / "program.py"],
        env={**os.environ, "FIBER_TRACE": str(folder / place)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


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
    (failed,) = [mark for mark in marks if mark["args"].get("kind") == "failed"]
    assert failed["name"] == "fail_at[0] failed: ValueError: bad 1"
    assert (failed["args"]["count"], failed["args"]["text"]) == (1, "bad 1")
    ready = [event["args"]["ready"] for event in events if event["ph"] == "C"]
    assert 2 in ready
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
    told = "trace /dev/full ends before its program, whose tasks go on: [Errno 28]"
    assert told in record.getMessage()


LIMITED = """
import resource
import fiber

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    with fiber.Pool(1) as pool:
        print(sum(pool.apply(abs, (-1,)) for _ in range(500)))
"""


def test_a_disk_that_fills_up_leaves_what_was_written_and_all_results(tmp_path):
    done = ran(tmp_path, LIMITED, "out.json")

    assert (done.returncode, done.stdout) == (0, "500\n")
    assert (
        f"trace {tmp_path}/out.json ends before its program, whose tasks go on: [Errno 27]"
        in done.stderr
    )
    assert (tmp_path / "out.json").stat().st_size == 20_000
    (found,) = [
        analyse(events) for pid, events in by_pool(read(tmp_path / "out.json")).items() if pid
    ]
    assert 50 < found.functions[0].count < 500


KILLED = """
import os, signal, sys
import fiber

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        while "count" not in open(os.environ["FIBER_TRACE"]).read():
            pool.map(abs, range(10))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_program_that_is_killed_leaves_a_file_that_can_be_read(tmp_path):
    done = ran(tmp_path, KILLED, "out.json")

    assert done.returncode == -signal.SIGKILL
    events = read(tmp_path / "out.json")
    assert {event["name"] for event in events if event["ph"] == "X"} == {"abs"}


NESTED = """
import subprocess, sys
import fiber

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        pool.map(abs, range(len(sys.argv)))
    if len(sys.argv) == 1:
        subprocess.run([sys.executable, __file__, "inner"], check=True)
"""


def test_programs_that_a_program_starts_have_traces_of_their_own(tmp_path):
    done = ran(tmp_path, NESTED, "out-%p.json")

    assert done.returncode == 0, done.stderr
    paths = list(tmp_path.glob("out-*.json"))
    counts = []
    for path in paths:
        events = json.loads(path.read_text())
        assert path.name == f"out-{events[0]['args']['pid']}.json"
        counts.append(sum(event["args"]["count"] for event in events if event["ph"] == "X"))
    assert sorted(counts) == [1, 2]


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
    done = ran(tmp_path, PROGRAM, place)

    assert done.returncode == code, done.stderr
    if code:
        assert f"setting 'trace': {tmp_path / place} cannot be written" in done.stderr
    else:
        events = json.loads((tmp_path / place).read_text())
        assert sum(event["args"]["count"] for event in events if event["ph"] == "X") == 2
