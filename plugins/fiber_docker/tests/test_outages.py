"""dockerd is restarted, and killed, while a program runs: nothing is lost, nothing is left."""

import queue
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import sys, time
import fiber

def square(n):
    time.sleep(0.02)
    return n * n

if __name__ == "__main__":
    with fiber.Pool(3) as pool:
        pool.map(square, range(30), chunksize=1)
        print("ready", flush=True)
        assert pool.map(square, range(300)) == [n * n for n in range(300)]
        print("right", flush=True)
        sys.stdin.readline()
    print("over", flush=True)
"""
PATIENCE = 120.0


class Program:
    """A running program whose output is read as it comes."""

    def __init__(self, folder, engine):
        (folder / "program.py").write_text(PROGRAM)
        self._process = subprocess.Popen(
            [sys.executable, "program.py"],
            cwd=folder,
            env=engine.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.output = queue.SimpleQueue()
        self.warned = queue.SimpleQueue()
        pipes = [(self._process.stdout, self.output), (self._process.stderr, self.warned)]
        self._readers = [threading.Thread(target=self._read, args=pipe) for pipe in pipes]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.put(line.rstrip("\n"))
        stream.close()

    def go_on(self):
        self._process.stdin.close()

    def end(self):
        """Wait for its end; its exit code, and its warnings since the last call."""
        code = self._process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code, [self.warned.get() for _ in range(self.warned.qsize())]

    def close(self):
        self._process.kill()
        self._process.stdin.close()
        self.end()


@pytest.fixture
def program(own_engine, tmp_path):
    program = Program(tmp_path, own_engine)
    yield program
    program.close()
    # as the other tests have it
    own_engine.daemon.stop()
    own_engine.daemon.start()


def test_a_restart_ends_no_map_and_an_engine_that_is_away_no_program(
    own_engine, program, record_property
):
    assert program.output.get(timeout=PATIENCE) == "ready"
    # without live-restore all containers end with it
    own_engine.daemon.stop()
    out_of_sight = program.warned.get(timeout=PATIENCE)
    assert "jobs are out of sight until the engine is back" in out_of_sight
    assert program.output.empty()
    since = time.monotonic()
    own_engine.daemon.start({"live-restore": True})
    assert program.output.get(timeout=PATIENCE) == "right"
    record_property("seconds from a restart's beginning to the map's end", time.monotonic() - since)

    # the containers go on without it, and it is not back before the program ends
    own_engine.daemon.stop()
    assert "jobs are out of sight" in program.warned.get(timeout=PATIENCE)
    program.go_on()
    code, warned = program.end()
    assert code == 0
    assert program.output.get() == "over"
    assert len(warned) == 1, warned
    assert "cannot be asked to end what this program still runs there" in warned[0]

    own_engine.daemon.start()
    assert own_engine.left(PATIENCE) == []
