"""dockerd is stopped while a program runs, and is not back before the program ends."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import sys
import fiber

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        print("ready" if pool.apply(abs, (-1,)) == 1 else "wrong", flush=True)
        sys.stdin.readline()
    print("over", flush=True)
"""
PATIENCE = 120.0


@pytest.fixture
def living_on(own_engine):
    """An engine without which containers go on; of one with which they end is the conformance kit."""
    own_engine.daemon.stop()
    own_engine.daemon.start({"live-restore": True})
    yield own_engine
    own_engine.daemon.stop()
    own_engine.daemon.start()


def test_an_engine_that_is_away_ends_no_program_and_what_it_ran_ends_by_itself(living_on, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    words = [sys.executable, "program.py"]
    program = subprocess.Popen(words, cwd=tmp_path, env=living_on.environ(), text=True, **pipes)
    with program:
        try:
            assert program.stdout.readline() == "ready\n", program.stderr.read()
            living_on.daemon.stop()
            while "jobs are out of sight until the engine is back" not in (
                line := program.stderr.readline()
            ):
                assert line
            output, warned = program.communicate("go on\n", PATIENCE)
        finally:
            program.kill()

    assert (program.returncode, output) == (0, "over\n")
    assert warned.count("cannot be asked to end what this program still runs there") == 1
    living_on.daemon.start()
    assert living_on.left(PATIENCE) == []
