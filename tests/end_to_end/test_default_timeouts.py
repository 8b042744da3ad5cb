"""A program's ``socket.setdefaulttimeout()`` is for its own sockets: Fiber's may be idle for longer."""

import os
import sys

import pytest

from commands import ran

# scrapers call it at import; children import the program too
PROGRAM = """
import os, socket, threading, time

TIMEOUT = 0.02
socket.setdefaulttimeout(TIMEOUT)

import fiber
from fiber.connection import Client, Listener

def idle(_=None):
    # every connection of the run is silent for so long
    time.sleep(5 * TIMEOUT)
    return os.getpid()

def answer_late(queue, connection, lock, shared):
    with lock:
        idle()
        shared.append(queue.get())
    connection.send(connection.recv() + 1)
    # its parent waits for the end
    idle()

def answer(listener):
    with listener.accept() as connection:
        idle()
        connection.send(connection.recv())

if __name__ == "__main__":
    queue, lock = fiber.Queue(), fiber.Lock()
    near, far = fiber.Pipe()
    with fiber.Manager() as manager:
        shared = manager.list()
        process = fiber.Process(target=answer_late, args=(queue, far, lock, shared))
        process.start()
        idle()
        queue.put(1)
        near.send(2)
        assert near.recv() == 3
        process.join()
        assert process.exitcode == 0, process.exitcode
        threading.Timer(5 * TIMEOUT, queue.put, ("late",)).start()
        assert queue.get(timeout=30) == "late"
        with lock:
            assert list(shared) == [1]
    with fiber.Pool(2) as pool:
        before = set(pool.map(idle, range(4), chunksize=1))
        idle()
        assert set(pool.map(idle, range(4), chunksize=1)) <= before
    for family in ("AF_UNIX", "AF_INET"):
        with Listener(family=family, authkey=b"key") as listener:
            thread = threading.Thread(target=answer, args=(listener,))
            thread.start()
            with Client(listener.address, authkey=b"key") as connection:
                idle()
                connection.send("late")
                assert connection.recv() == "late"
            thread.join()
    print("done")
"""


@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_connections_may_be_idle_for_longer_than_the_programs_default_timeout(transport, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = ran([sys.executable, program], env={**os.environ, "FIBER_LOCAL_TRANSPORT": transport})

    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0), done.stderr
