"""Masters in containers, and workers that strangers kill or freeze."""

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.timeout(400)

NESTED = """
import os, platform, fiber

def host(_):
    return platform.node()

if __name__ == "__main__":
    with fiber.Pool(2) as pool:
        found = set(pool.map(host, range(20), chunksize=1))
    print("others" if platform.node() not in found else "myself", len(found) > 0)
"""

WRITE_AND_RUN = f"""
import os
os.chdir("/work")
open("p.py", "w").write({NESTED!r})
os.execvp("python3", ["python3", "p.py"])
"""

SQUARES = """
import sys, time, fiber

def square(n):
    time.sleep(0.02)
    return n * n

if __name__ == "__main__":
    with fiber.Pool(3) as pool:
        pool.map(square, range(30), chunksize=1)
        print("ready", flush=True)
        assert pool.map(square, range(600)) == [n * n for n in range(600)]
    print("right", flush=True)
"""


def test_a_master_in_a_container_starts_containers_of_its_own_image(engine):
    """Its network and image are found: nothing names them."""
    socket = engine.url.removeprefix("unix://")
    with contextlib.closing(engine.docker()) as client:
        output = client.containers.run(
            engine.image,
            ["python3", "-c", WRITE_AND_RUN],
            environment={"FIBER_BACKEND": "docker"},
            volumes=[f"{socket}:/var/run/docker.sock"],
            remove=True,
        )

    assert output.decode().split("\n")[0] == "others True"
    assert engine.containers() == []


@pytest.fixture
def squares(engine, tmp_path):
    """A pool of three containers in the middle of a map."""
    (tmp_path / "squares.py").write_text(SQUARES)
    process = subprocess.Popen(
        [sys.executable, "squares.py"],
        cwd=tmp_path,
        env=engine.environ(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("how", ["engine", "process"])
def test_a_killed_container_loses_no_task(engine, squares, how, record_property):
    with contextlib.closing(engine.docker()) as client:
        victim = engine.listed("fiber.run")[0]
        events = client.api.events(
            decode=True, filters={"event": ["create", "die"], "label": engine.labels("fiber.run")}
        )
        since = time.monotonic()
        if how == "engine":
            client.api.kill(victim["Id"])
        else:
            os.kill(client.api.inspect_container(victim["Id"])["State"]["Pid"], 9)
        for event in events:
            if event["Action"] == "create":
                # another one is made in its place, so its death was noticed
                record_property("seconds until a lost worker is replaced", time.monotonic() - since)
                break
        events.close()
        events._response.close()

    assert squares.stdout.read() == "right\n"
    assert squares.wait(60) == 0
    assert engine.containers() == []


#: what each task is begun on is counted; the first one waits for a word
COUNTED = """
import platform, sys
import fiber

def task(n, begun, word):
    begun.put((n, platform.node()))
    return n * n if n else word.get()

if __name__ == "__main__":
    begun, word = fiber.Queue(), fiber.Queue()
    with fiber.Pool(2, error_handling=False) as pool:
        result = pool.starmap_async(task, [(n, begun, word) for n in range(8)], chunksize=1)
        where = dict(begun.get(timeout=100) for _ in range(8))
        print(where[0], flush=True)
        sys.stdin.readline()
        word.put("done")
        assert result.get(100) == ["done"] + [n * n for n in range(1, 8)]
        pool.close()
        pool.join()
    print("begun again", begun.qsize(), flush=True)
"""


def test_a_worker_that_is_paused_for_longer_than_its_lease_goes_on(engine, tmp_path):
    (tmp_path / "program.py").write_text(COUNTED)
    environ = engine.environ()
    with subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environ,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as program:
        # a program that hangs is the end of the test's patience
        guard = threading.Timer(200, program.kill)
        guard.start()
        try:
            container = program.stdout.readline().strip()
            engine.pause(container)
            # said after five seconds, and the lease is three
            line = program.stderr.readline()
            assert "is suspended by its platform, and keeps its tasks" in line, line
            listed = subprocess.run(
                [sys.executable, "-m", "fiber.cli.main", "ps"],
                env=environ,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert [line for line in listed.splitlines() if "suspended" in line], listed
            with contextlib.closing(engine.docker()) as client:
                client.api.unpause(container)
            out, err = program.communicate("go on\n")
        finally:
            guard.cancel()
            program.kill()

    assert (out, err) == ("begun again 0\n", "")
    assert engine.containers() == []
