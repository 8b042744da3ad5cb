"""``fiber trace summary``: where time went, in words, and what to change."""

import json

import pytest
from click.testing import CliRunner

from fiber.cli.main import cli
from fiber.cli.trace import analyse, report

MIB = 2**20


def task(row, begin, seconds, *, name="train", count=1, spent=None, size_in=30, size_out=30):
    """A slice of a worker's row."""
    return {
        "name": name,
        "ph": "X",
        "ts": begin * 1e6,
        "dur": seconds * 1e6,
        "pid": 1,
        "tid": row,
        "args": {
            "count": count,
            "seconds": seconds if spent is None else spent,
            "bytes_in": size_in * count,
            "bytes_out": size_out * count,
        },
    }


def mark(row, at, **facts):
    return {"name": "mark", "ph": "i", "ts": at * 1e6, "pid": 1, "tid": row, "args": facts}


def workers(at, ready, missing):
    """How many workers there are from then on."""
    args = {"ready": ready, "missing": missing}
    return {"name": "workers", "ph": "C", "ts": at * 1e6, "pid": 1, "args": args}


BEGIN = mark(0, 0)
FAILED = {
    "kind": "failed",
    "function": "train",
    "item": 613,
    "error": "ValueError",
    "text": "negative mass",
    "count": 1,
}
DEATH = {"kind": "death", "reason": "OOM", "again": 2, "given_up": 1}
#: what is in a trace, and the words that tell what to change
ADVICE = {
    "well": ([task(row, at, 1) for row in (1, 2) for at in range(8)], "nothing stands out"),
    "large arguments": (
        [task(row, at, 1, size_in=3 * MIB) for row in (1, 2) for at in range(8)],
        "each task of train is sent 3 MiB, 48 MiB in all: what is the same for many of them goes once",
    ),
    "large results": (
        [task(row, at, 1, size_out=5 * MIB) for row in (1, 2) for at in range(8)],
        "each task of train returns 5 MiB: return less",
    ),
    "short tasks": (
        [task(row, at, 0.5, count=1000) for row in (1, 2) for at in range(8)],
        (
            "tasks of train take 500 µs, about what each costs to hand out: do more in one, or give "
            "map() a chunksize of about 20"
        ),
    ),
    "one long task": (
        [*(task(1, at, 1) for at in range(8)), task(2, 0, 30)],
        "the longest task of train took 30 s, where the mean is 4.22 s: begin with the long ones",
    ),
    "few tasks": (
        [task(row, 0, row) for row in range(1, 9)],
        "8 tasks for 8 workers: many had nothing left to do while the last ones ran",
    ),
    "late workers": (
        [task(row, 5 + at, 1) for row in (1, 2) for at in range(8)],
        "workers were long in coming",
    ),
    "a slow program": (
        [task(row, 3 * at, 1) for row in (1, 2) for at in range(8)],
        "workers waited for the program between tasks",
    ),
    "failures": (
        [*(task(row, at, 1) for row in (1, 2) for at in range(8)), *[mark(0, 3, **FAILED)] * 2],
        (
            "2 tasks of train failed with ValueError, the first was train[613]: negative mass; 'fiber top' "
            "shows the traceback"
        ),
    ),
    "a slow worker": (
        [
            *(task(row, at, 1) for row in (1, 2) for at in range(96)),
            *(task(3, 12 * at, 12) for at in range(8)),
        ],
        "worker 3 took 12 s for a task of train, and the others 1 s: 12.0 times as long",
    ),
    "a missing worker": (
        [
            *(task(row, at, 1) for row in (1, 2) for at in range(8)),
            workers(0, 2, 1),
            mark(0, 0, kind="missing", reason="waits for 1 accelerator"),
            # when the pool is closed
            workers(8, 0, 3),
        ],
        "1 of 3 workers were missing on average: waits for 1 accelerator",
    ),
    "much in all": (
        [task(row, at, 1, count=1000, size_in=MIB // 8) for row in (1, 2) for at in range(8)],
        "each task of train is sent 128 KiB, 1.95 GiB in all: what is the same for many",
    ),
    "deaths": (
        [*(task(row, at, 1) for row in (1, 2) for at in range(8)), mark(2, 8, **DEATH)],
        "workers died (1 by OOM): 2 tasks ran again and 1 were given up",
    ),
}


@pytest.mark.parametrize("what", ADVICE)
def test_what_is_wrong_is_said_with_what_to_change(what):
    events, words = ADVICE[what]

    advice = [line.strip(" -") for line in report(analyse([BEGIN, *events])) if "  - " in line]

    assert any(line.startswith(words) for line in advice), advice
    assert len(advice) == 1, advice


def test_all_time_of_workers_is_accounted_for_those_that_replaced_others_too():
    ended = {**DEATH, "kind": "end"}
    events = [
        BEGIN,
        *(task(1, at, 1) for at in (1, 3)),
        task(2, 0, 2),
        mark(2, 4, **ended),
        task(3, 5, 5),
    ]

    found = analyse(events)

    # the first worker was there for 10 s, the second one for 4, and for 6 the one in its place
    assert (found.workers, found.span, found.available) == (2, 10, 20)
    assert (found.busy, found.starting, found.between, found.ending) == (9, 2, 1, 8)


def invoke(*words):
    return CliRunner().invoke(cli, ["trace", "summary", *map(str, words)], prog_name="fiber")


def test_the_command_reads_a_file_that_was_cut_off(tmp_path):
    events = [{"name": "fiber", "ph": "M", "pid": 0, "args": {}}]
    events += [{"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "pool-1"}}]
    events += [BEGIN, *(task(row, at, 1) for row in (1, 2) for at in range(8))]
    file = tmp_path / "out.json"
    text = "[\n" + ",\n".join(map(json.dumps, events))
    file.write_text(text + "\n]\n")
    whole, data = invoke(file), invoke("--json", file)
    file.write_text(text + ',\n{"name": "tra')
    cut = invoke(file)

    assert whole.stdout.splitlines()[:2] == [
        (
            "pool-1: 2 workers were busy 100% of 8 s; 0% passed before their first task, 0% between "
            "tasks, 0% after their last"
        ),
        "  train: 16 tasks of 1 s, the longest 1 s; 30 B in and 30 B out each",
    ]
    assert cut.stdout == whole.stdout
    assert json.loads(data.stdout)[0]["functions"][0]["count"] == 16


@pytest.mark.parametrize(
    "text, told",
    [
        (None, "cannot be read"),
        ("{}", "is no trace that fiber wrote"),
        ("[" * 10000, "is no trace that fiber wrote"),
        ('[\n{"name": "fiber", "ph": "M", "pid": 0}\n]', "has no task"),
    ],
)
def test_what_is_no_trace_is_told(tmp_path, text, told):
    file = tmp_path / "out.json"
    if text is not None:
        file.write_text(text)

    done = invoke(file)

    assert (done.exit_code, done.stdout) == (1, "")
    assert told in done.stderr
