"""A worker that `docker pause` froze is suspended, keeps its task and goes on with it."""

import contextlib
import subprocess
import sys
import threading

import pytest

pytestmark = pytest.mark.timeout(300)

#: what each task is begun on is counted; the first one waits for a word
PROGRAM = """
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
    (tmp_path / "program.py").write_text(PROGRAM)
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
