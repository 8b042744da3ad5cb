"""Faults of the project that Fiber succeeds, each seen there once, that no other test is about."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

import fiber
from fiber._runtime import runtime
from fiber.exceptions import ConfigError, UnknownBackendError


def identity(x):
    return x


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()


def kill_once(argument):
    path, value = argument
    try:
        with open(path, "x"):
            os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        return value


def take_and_die(queue):
    assert queue.get() == 0
    os.kill(os.getpid(), signal.SIGKILL)


def echo(connection):
    connection.send(connection.recv())


# -- pools


@pytest.mark.parametrize("chunksize", [None, 1, 3])
@pytest.mark.parametrize("error_handling", [True, False])
def test_a_killed_worker_leaves_no_holes_and_hangs_nobody(tmp_path, chunksize, error_handling):
    items = [(str(tmp_path / ("once" if n == 7 else "never")), n) for n in range(30)]
    for n, (path, _) in enumerate(items):
        if n != 7:
            open(path, "a").close()
    with fiber.Pool(2, error_handling=error_handling) as pool:
        try:
            assert pool.map(kill_once, items, chunksize) == list(range(30))
        except fiber.WorkerCrashedError:
            # at most once: the lost work is reported, the rest is there
            assert not error_handling


def test_the_first_worker_does_not_get_all_the_work():
    with fiber.Pool(3) as pool:
        assert len(set(pool.map(pid_after, [0.3] * 9))) == 3


# -- processes


def test_a_program_waits_for_its_children_as_the_stdlib_does(tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import sys, time
            import fiber

            def write_late(path):
                time.sleep(0.5)
                with open(path, "w") as stream:
                    stream.write("finished")

            if __name__ == "__main__":
                fiber.Process(target=write_late, args=(sys.argv[1],)).start()
                fiber.Process(target=time.sleep, args=(600,), daemon=True).start()
            """
        )
    )
    out = tmp_path / "out"
    subprocess.run([sys.executable, "program.py", str(out)], cwd=tmp_path, check=True, timeout=60)
    assert out.read_text() == "finished"


# -- queues and pipes


def test_more_than_a_mebibyte_goes_through_queues_and_pipes():
    data = os.urandom(3 * 2**20)
    here, there = fiber.Pipe()
    process = fiber.Process(target=echo, args=(there,))
    process.start()
    here.send(data)
    assert here.recv() == data
    process.join(30)
    queue = fiber.SimpleQueue()
    queue.put(data)
    assert queue.get() == data


def test_a_reader_that_dies_takes_nothing_with_it_but_what_it_had():
    queue = fiber.SimpleQueue()
    for n in range(10):
        queue.put(n)
    process = fiber.Process(target=take_and_die, args=(queue,))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert [queue.get() for _ in range(9)] == list(range(1, 10))


# -- trust


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_strangers_pickle_is_not_run_and_nobody_waits_for_a_silent_one(tmp_path):
    pool = fiber.Pool(1)
    (url,) = runtime.current().urls()
    assert "0.0.0.0" not in url
    path = url.partition("://")[2]
    strangers = []
    for text in (b"", pickle.dumps(Bomb(str(tmp_path / "bomb"))), os.urandom(2000)):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(path)
        stranger.sendall(text)
        strangers.append(stranger)
    assert pool.map(identity, range(10)) == list(range(10))
    process = fiber.Process(target=identity, args=(1,))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    for stranger in strangers:
        stranger.close()
    pool.terminate()
    pool.join()
    assert not (tmp_path / "bomb").exists()


def test_the_key_is_in_no_argv_environment_file_or_repr():
    pool = fiber.Pool(1)
    pool.map(identity, [1])
    current = runtime.current()
    key = current.credentials.key
    needles = (key, key.hex().encode())
    me = psutil.Process()
    seen = [repr(current.credentials).encode()]
    for process in [me, *me.children(recursive=True)]:
        seen.append(" ".join(process.cmdline()).encode())
        seen.append(repr(process.environ()).encode())
    seen += [p.read_bytes() for p in current.directory.rglob("*") if p.is_file()]
    assert not [text for text in seen for needle in needles if needle in text]
    pool.terminate()
    pool.join()


# -- settings and hints


def test_hints_of_one_pool_do_not_leak_into_the_next():
    @fiber.meta(cpu=1)
    def hinted(x):
        return x

    with fiber.Pool(1) as pool:
        assert pool.map(hinted, [1]) == [1]
    from fiber.hints import get_meta

    assert get_meta(identity).resources.is_empty
    with fiber.Pool(1) as pool:
        assert pool.map(identity, [1]) == [1]


def test_text_settings_are_typed_and_unknown_ones_are_errors(monkeypatch):
    monkeypatch.setenv("FIBER_DEBUG", "false")
    assert runtime.current().config.debug is False
    runtime.current().close()
    with pytest.raises(ConfigError, match="colour"):
        fiber.init(colour="red")
    monkeypatch.setenv("FIBER_BACKEND", "no-such-backend")
    with pytest.raises(UnknownBackendError, match="no-such-backend"):
        fiber.get_backend()


def test_the_documented_file_is_read(tmp_path, monkeypatch):
    (tmp_path / ".fiberconfig").write_text("[default]\nmax_attempts = 5\n")
    monkeypatch.chdir(tmp_path)
    assert runtime.current().config.max_attempts == 5
