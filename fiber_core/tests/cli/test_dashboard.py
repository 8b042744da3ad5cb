"""``fiber dashboard``: the page of the runs that are on this host."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

import fiber as mp
import require
from fiber._runtime import runtime
from pool_tasks import square
from waiting import PATIENCE


@pytest.fixture(autouse=True)
def _installed():
    require.need_module("starlette")
    require.need_module("uvicorn")


@pytest.fixture
def dashboard():
    process = subprocess.Popen(
        [sys.executable, "-m", "fiber.cli.main", "dashboard", "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def read(url, path):
    base, _, query = url.partition("?")
    joint = "&" if "?" in path else "?"
    with urllib.request.urlopen(f"{base}{path}{joint}{query}", timeout=PATIENCE) as answer:
        if "event-stream" not in answer.headers["content-type"]:
            return answer.read().decode()
        lines = iter(answer.readline, b"")
        return next(line for line in lines if line.startswith(b'data: {"now"')).decode()


def test_it_shows_a_run_of_this_host_until_ctrl_c(dashboard):
    line = dashboard.stderr.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+(?=;)", line)[0]
    with mp.Pool(2) as pool:
        pool.map(square, range(10))
        ident = runtime.current().run_id
        runs = json.loads(read(url, "runs"))
        state = json.loads(read(url, f"events?run={ident}").removeprefix("data: "))
    pool.join()
    with urllib.request.urlopen(url.replace("/?", f"/events?run={ident}&"), timeout=PATIENCE):
        # somebody still looks
        dashboard.send_signal(signal.SIGINT)
        code = dashboard.wait(PATIENCE)

    assert ident in {one["id"] for one in runs}
    assert state["run"]["id"] == ident
    assert state["point"]["done"] == 10
    assert len(state["workers"]) == 2
    assert code == 130
    assert dashboard.stderr.read() == ""


def test_a_run_that_is_not_there_is_told_at_once():
    done = subprocess.run(
        [sys.executable, "-m", "fiber.cli.main", "dashboard", "ffffffff"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 1
    assert "no program of yours on this host answers for run 'ffffffff'" in done.stderr
