"""The page of a program that asked for one: a process that ends with it, and may end before it."""

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

import fiber as mp
import require
from fiber._config.settings import load_config
from fiber._dashboard import program
from fiber._dashboard.program import Page
from fiber._runtime import runtime
from fiber.exceptions import ConfigError
from pool_tasks import square
from waiting import PATIENCE, until

PROGRAM = """
import os, time, fiber as mp
if __name__ == "__main__":
    mp.init(dashboard="127.0.0.1:0")
    with mp.Pool(1) as pool:
        pool.map(abs, [1])
        if os.fork() == 0:
            # it keeps the descriptors of its parent
            time.sleep({sleeps})
            os._exit(0)
        time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    require.need_module("starlette")
    require.need_module("uvicorn")
    monkeypatch.setenv("FIBER_DASHBOARD", "127.0.0.1:0")


@pytest.fixture
def pool(capfd):
    # what it prints may come before the test begins
    with mp.Pool(2) as pool:
        yield pool
    pool.join()


def page():
    return next(part for part in runtime.current().parts if isinstance(part, Page))


def address(capfd, before=""):
    said = [before]
    pattern = r"fiber: the dashboard is at (http://127\.0\.0\.1:\d+/\?token=\S+)\n"
    until(lambda: said.append(said[-1] + capfd.readouterr().err) or re.search(pattern, said[-1]))
    return re.search(pattern, said[-1])[1]


def is_there(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_its_address_is_printed_and_it_shows_this_run_until_the_program_ends(pool, capfd):
    url, pid = address(capfd), page().pid
    ident = runtime.current().run_id

    with urllib.request.urlopen(
        url.replace("/?", f"/events?run={ident}&"), timeout=PATIENCE
    ) as told:
        state = next(line for line in iter(told.readline, b"") if line.startswith(b'data: {"now"'))
    command = subprocess.run(
        ["ps", "-o", "args=", "-p", str(pid)], check=True, capture_output=True, text=True
    )
    runtime.current().close()

    assert f'"id":"{ident}"'.encode() in state
    assert url.partition("token=")[2] not in command.stdout
    assert not is_there(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_page_that_is_killed_or_stopped_costs_no_result(pool, capfd, caplog, number):
    url, pid = address(capfd), page().pid
    with urllib.request.urlopen(url.replace("/?", f"/events?run={runtime.current().run_id}&")):
        results = pool.map_async(square, range(5000), chunksize=1)
        os.kill(pid, number)
        assert results.get(PATIENCE) == [x * x for x in range(5000)]
    if number == signal.SIGKILL:
        until(lambda: "the process of the dashboard has ended with code -9" in caplog.text)
    runtime.current().close()

    assert not is_there(pid)


def test_it_ends_with_a_program_that_is_killed_whoever_keeps_its_descriptors(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(sleeps=30))
    with subprocess.Popen(
        [sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        # from Python 3.12 on, the fork's warning may come first
        found = (re.search(r"http://\S+", line) for line in process.stderr)
        url = next(filter(None, found))[0]
        urllib.request.urlopen(url, timeout=PATIENCE).close()
        until(lambda: children(process.pid))
        process.kill()
        process.wait()

        def is_gone():
            try:
                urllib.request.urlopen(url, timeout=PATIENCE).close()
            except OSError:
                return True
            return False

        until(is_gone)
        # the fork that kept them
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


ENDS = """
import sys, fiber as mp
if __name__ == "__main__":
    mp.init(dashboard="127.0.0.1:0")
    with mp.Pool(1) as pool:
        pool.map(abs, [1])
    sys.stdin.readline()
    {last}
"""


@pytest.mark.parametrize(
    "last, how",
    [
        ("sys.exit(3)", ""),
        ("raise ValueError('negative\\nmass')", "ValueError: negative mass"),
        ("import os; os._exit(3)", None),
    ],
    ids=["by itself", "by an error", "without a word"],
)
def test_those_who_look_are_told_how_the_program_has_ended(tmp_path, last, how):
    script = tmp_path / "program.py"
    script.write_text(ENDS.format(last=last))
    words = [sys.executable, script]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = re.search(r"http://\S+", process.stderr.readline())[0]
        with urllib.request.urlopen(url.replace("/?", "/runs?"), timeout=PATIENCE) as listed:
            run = json.load(listed)[0]["id"]
        streams = [
            urllib.request.urlopen(url.replace("/?", f"/events?run={run}{more}&"), timeout=PATIENCE)
            for more in ("", "&quiet=1")
        ]
        with streams[0] as shown, streams[1] as quiet:
            next(line for line in iter(shown.readline, b"") if line.startswith(b'data: {"now"'))
            process.communicate("end\n")
            told = [rest_of(stream)[-3:-1] for stream in (shown, quiet)]

    if how is None:
        assert b"event: ended\n" not in itertools.chain(*told)
    else:
        assert told == [[b"event: ended\n", f'data: {{"how":"{how}"}}\n'.encode()]] * 2


def rest_of(stream):
    """The lines that are left; of one that is cut off those before."""
    lines = []
    with contextlib.suppress(OSError, http.client.HTTPException):
        lines.extend(iter(stream.readline, b""))
    return lines


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return len(found.stdout.split()) >= 3


@pytest.mark.parametrize(
    "break_it, said",
    [
        (
            lambda patch: patch.setenv("FIBER_DASHBOARD", "192.0.2.1:80"),
            "the dashboard cannot be served at 192.0.2.1:80",
        ),
        (
            lambda patch: patch.setattr(program, "python", lambda: "/no/such/python"),
            "No such file or directory: '/no/such/python'",
        ),
    ],
)
def test_a_program_runs_without_where_it_cannot_be_served(monkeypatch, caplog, break_it, said):
    break_it(monkeypatch)
    with mp.Pool(1) as pool:
        assert pool.map(square, [3]) == [9]
        until(lambda: said in caplog.text)
    pool.join()

    assert "the program runs without" in caplog.text
    assert "has ended" not in caplog.text


@pytest.mark.parametrize(
    "given, expected",
    [
        (True, "127.0.0.1:8237"),
        ("1", "127.0.0.1:8237"),
        (False, None),
        ("none", None),
        ("[::1]:0", "[::1]:0"),
    ],
)
def test_the_setting_is_yes_no_or_an_address(given, expected):
    assert load_config({"dashboard": given}, {}).dashboard == expected


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match="HOST:PORT such as 127.0.0.1:8237"):
        load_config({"dashboard": "somewhere"}, {})
