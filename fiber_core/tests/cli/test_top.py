"""``fiber top``: what is shown of the runs of a host, and what keys do."""

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios

import pytest
from click.testing import CliRunner
from rich.console import Console

import fiber as mp
from fiber._agent import rundir
from fiber.cli.main import cli
from fiber.cli.top import Board, View, render, sparkline
from pool_tasks import fail_at
from waiting import PATIENCE


def worker(name, state="busy", **fields):
    return {
        "name": name,
        "host": "n1",
        "pid": 7,
        "state": state,
        "reason": "",
        "running": 2,
        "function": "train",
        "seconds": 2.0,
        "usual": 3.0,
        "is_slow": False,
        **fields,
    }


def status(done=0, workers=(), **fields):
    pool = {
        "name": "pool-1",
        "wanted": 4,
        "ready": 2,
        "reason": "Insufficient cpu.",
        "waiting": 90,
        "running": 4,
        "done": done,
        "failed": 1,
        "retried": 3,
        "workers": list(workers),
        "errors": [{"function": "train", "item": 5, "error": "ValueError: \x1b[2J", "when": 1.0}],
        **fields,
    }
    return {"run": "0000000a", "pools": [pool], "processes": [], "queues": []}


@pytest.fixture
def board():
    board = Board()
    board.take("0000000a", status(100), 10.0)
    workers = [
        worker("w-1", running=1, seconds=9.0),
        worker("w-2", "idle", host="n0"),
        worker("w-3", running=9),
    ]
    board.take("0000000a", status(150, workers), 12.0)
    yield board
    board.close()


def drawn(board, view=None, height=30, width=120):
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(render(board, view or View(), height, width))
    return console.file.getvalue()


def invoke(*words):
    return CliRunner().invoke(cli, ["top", *words], prog_name="fiber")


def read_end(terminal):
    """What a terminal still has whose other end is closed."""
    with contextlib.suppress(OSError):
        return os.read(terminal, 4096)
    return b""


def test_it_shows_how_fast_pools_are_what_waits_why_and_what_failed(board):
    shown = drawn(board)

    assert "fiber top: 1 run, 2 workers, 25 tasks/s" in shown
    assert re.search(r"0000000a +pool-1 +2/4 +90 +4 +150 +1 +3 +25/s +█", shown)
    assert "0000000a pool-1: 2 of 4 workers are missing: Insufficient cpu." in shown
    # the words of a job give no orders to the terminal
    assert r"train[5]: ValueError: \x1b[2J" in shown


def test_a_process_that_waits_is_told_with_the_reason(board):
    waits = {"name": "train", "host": "", "pid": None, "state": "pending", "reason": "no gpu"}
    board.take("0000000a", {**status(150), "processes": [waits]}, 13.0)

    assert "0000000a train: no gpu" in drawn(board)


def test_a_straggler_is_told_above_the_table_with_its_host_and_the_median(board):
    slow = worker("w-4", host="n7", seconds=58.0, usual=4.8, is_slow=True)
    others = [worker(f"w-{9 + number}", seconds=30.0, is_slow=True) for number in range(3)]
    board.take("0000000a", status(150, [worker("w-1"), slow, *others]), 13.0)
    view = View(state="slow")

    shown = drawn(board)

    assert "0 tasks/s, 4 slow" in shown
    assert "w-4 on n7: train for 58 s, the median is 4.8 s" in shown
    assert "1 more workers are as slow" in shown
    assert re.search(r"w-4 +busy +7 +n7 +2 +58 s, 12.1x +train", shown)
    assert [one["name"] for _, one in view.select(board)] == ["w-4", "w-9", "w-10", "w-11"]


def test_a_worker_whose_tasks_take_longer_than_the_others_is_told_with_how_much(board):
    slow = worker("w-4", lately=4.4, others=0.35, seconds=0.2)
    board.take("0000000a", status(150, [worker("w-1", lately=0.35, others=None), slow]), 13.0)

    shown = drawn(board)

    assert "0 tasks/s, 1 slow" in shown
    assert "0000000a w-4 on n1 is slow: 4.4 s a task lately, the others 350 ms (12.6x)" in shown
    assert [one["name"] for _, one in View(state="slow").select(board)] == ["w-4"]


def test_a_program_with_an_older_fiber_is_shown_without_times(board):
    old = worker("w-1")
    for name in ("seconds", "usual", "is_slow"):
        del old[name]
    board.take("0000000a", status(150, [old]), 13.0)

    assert re.search(r"w-1 +busy +7 +n1 +2 +train", drawn(board))


def test_keys_sort_filter_hide_and_quit(board):
    view = View()

    def names():
        return [one["name"] for _, one in view.select(board)]

    assert names() == ["w-1", "w-2", "w-3"]
    for expected in ("w-1 w-3 w-2", "w-2 w-1 w-3", "w-3 w-2 w-1", "w-1 w-2 w-3"):
        view.press("s", board)
        assert names() == expected.split(), view.order
    view.press("f", board)
    assert names() == ["w-1", "w-3"]
    view.press("e", board)
    assert "ValueError" not in drawn(board, view)
    view.press("x", board)
    assert not view.is_over
    view.press("q", board)
    assert view.is_over


def test_a_filter_of_a_state_that_nobody_is_in_is_left_out(board):
    view, states = View(), []
    for _ in range(3):
        view.press("f", board)
        states.append(view.state)

    assert states == ["busy", "idle", ""]


@pytest.mark.parametrize(
    "replay, again",
    [("5b7d-1", "fiber replay --pdb 5b7d-1"), ("", "start with FIBER_KEEP_FAILED=1")],
)
def test_a_key_shows_the_traceback_of_the_last_error_and_hides_it(board, replay, again):
    error = {"function": "train", "item": 7, "error": "ValueError: \x1b[2J", "when": 2.0}
    error.update(worker="w-3", replay=replay, traceback="Traceback:\n  File x\nValueError: \x1b[2J")
    first = {**error, "item": 5, "when": 1.0}
    board.take("0000000a", status(150, errors=[error, first]), 13.0)
    view = View()
    view.press("t", board)
    shown = drawn(board, view)
    view.press("t", board)

    assert "0000000a train[7] on w-3:" in shown
    assert "  File x\nValueError: \\x1b[2J" in re.sub(" +\n", "\n", shown)
    assert again in shown
    assert "  File x" not in drawn(board, view)


def test_a_long_reason_is_wrapped_and_keys_are_explained(board):
    why = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu; the quota of team-a is used up"
    board.take("0000000a", status(150, reason=why), 13.0)
    view = View()
    view.press("?", board)

    shown = drawn(board, view, width=60)

    assert "used up" in shown
    assert "t: show or hide the traceback" in shown


def test_what_finds_no_room_is_counted(board):
    shown = drawn(board, height=12)

    assert "1 more workers" in shown
    assert len(shown.splitlines()) <= 12


@pytest.mark.parametrize(
    "values, bars", [([], ""), ([0.0, 0.0], "▁▁"), ([0.0, 5.0, 10.0], "▁▅█"), ([1.0], "█")]
)
def test_a_sparkline_is_as_high_as_its_highest_value(values, bars):
    assert sparkline(values) == bars


class TestCommand:
    def test_it_prints_once_what_runs_and_who_does_not_answer(self, run_root):
        rundir.create("0000000b", "fake", detached=True)
        with mp.Pool(1) as pool:
            with pytest.raises(ValueError, match="bad"):
                pool.starmap(fail_at, [(1, 1)])
            done, data = invoke("--once"), invoke("--json")
        pool.join()
        rundir.remove(run_root / "fiber" / "0000000b")

        rows = [line.split("\t") for line in done.stdout.splitlines()]
        (told,) = [row for row in rows if len(row) == 8 and row[1].startswith("pool-")]
        assert told[2:] == ["1/1", "0", "0", "1", "1", "0"]
        assert [row[2] for row in rows if len(row) == 8 and "PoolWorker" in row[1]] == ["idle"]
        assert "0000000b: unknown backend 'fake' (of this run" in done.stderr
        assert "fail_at[0]: ValueError: bad 1" in done.stderr
        found = {one["run"]: one["status"] for one in json.loads(data.stdout)}
        assert found["0000000b"] is None
        assert found[told[0]]["pools"][0]["done"] == 1

    def test_a_program_here_is_found_by_the_run_of_its_job_too(self, monkeypatch):
        # as fiber run starts it
        monkeypatch.setenv("FIBER_RUN", "0000000d")
        with mp.Pool(1) as pool:
            pool.map(abs, [1])
            (found,) = json.loads(invoke("--json", "0000000d").stdout)
        pool.join()

        assert found["outer"] == "0000000d" != found["run"]
        assert found["status"]["pools"][0]["done"] == 1

    def test_a_word_that_means_no_run_is_told(self):
        done = invoke("--once", "abc")

        assert (done.exit_code, done.stdout) == (1, "")
        assert "no run of yours on this host is 'abc'" in done.stderr

    def test_without_a_terminal_it_says_what_there_is_instead(self):
        done = invoke()

        assert done.exit_code == 1
        assert "needs a terminal; --once prints" in done.stderr

    @pytest.mark.parametrize("is_interrupted", [False, True], ids=["q", "Ctrl-C"])
    def test_on_a_terminal_it_goes_on_until_it_is_ended_and_leaves_the_terminal_as_it_was(
        self, is_interrupted
    ):
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        words = [sys.executable, "-m", "fiber.cli.main", "top", "--interval", "0.1"]
        shown = bytearray()
        with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            while shown.count(b"fiber top") < 3:
                shown += os.read(ours, 4096)
            if is_interrupted:
                process.send_signal(signal.SIGINT)
            else:
                os.write(ours, b"q")
            assert process.wait(PATIENCE) == (130 if is_interrupted else 0)
        assert termios.tcgetattr(theirs) == before
        os.close(theirs)
        while rest := read_end(ours):
            shown += rest
        os.close(ours)
        assert b"0 runs" in shown
        assert b"Traceback" not in shown
