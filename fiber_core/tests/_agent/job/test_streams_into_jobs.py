"""Without addresses to dial, the parent's streams carry everything: to it and among its jobs."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

import fiber
from fiber._runtime import runtime
from fiber.model import ReasonKind


@pytest.fixture(autouse=True)
def _nobody_dials(remote_host):
    remote_host.use(far_streams=True)


class Cutter:
    """Cuts streams into jobs, as a server does that is restarted."""

    def __init__(self, backend, monkeypatch):
        self._streams = []
        self._finished = threading.Event()
        self.cuts = 0
        opened = backend.open_stream

        def open_stream(job):
            self._streams.append(opened(job))
            return self._streams[-1]

        monkeypatch.setattr(backend, "open_stream", open_stream)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._finished.set()
        self._thread.join(10)

    def _run(self):
        chance = random.Random(1)
        while not self._finished.wait(0.05 + 0.1 * chance.random()):
            self.cut(chance)

    def cut_all(self):
        for one in self._streams:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self, chance):
        alive = [one for one in self._streams if one.fileno() >= 0]
        for one in chance.sample(alive, len(alive) // 2):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
                self.cuts += 1


@pytest.fixture
def cutter(monkeypatch):
    return Cutter(runtime.current().backend, monkeypatch)


def take_all(queue):
    total = 0
    while (item := queue.get()) is not None:
        total += item
    sys.exit(total)


def square(x):
    return x * x


def own_queue(sender):
    """Make a queue here and have others use it."""
    queue = fiber.Queue()
    sender.send(queue)
    total = 0
    while (item := queue.get(timeout=60)) is not None:
        total += item
    sys.exit(total)


def feed(queue):
    for item in (*range(5), None):
        queue.put(item)


def start_one(code):
    child = fiber.Process(target=sys.exit, args=(code,))
    child.start()
    child.join(60)
    sys.exit(child.exitcode)


def start(target, *args):
    process = fiber.Process(target=target, args=args)
    process.start()
    return process


def test_a_child_reaches_its_parent():
    queue = fiber.Queue()
    process = start(take_all, queue)
    for item in (*range(10), None):
        queue.put(item)
    process.join(60)
    assert process.exitcode == 45


def test_a_parent_reaches_what_a_child_has_made():
    reader, writer = fiber.Pipe(duplex=False)
    process = start(own_queue, writer)
    feed(reader.recv())
    process.join(60)
    assert process.exitcode == 10


def test_siblings_reach_each_other():
    reader, writer = fiber.Pipe(duplex=False)
    owner = start(own_queue, writer)
    other = start(feed, reader.recv())
    owner.join(60)
    other.join(60)
    assert (owner.exitcode, other.exitcode) == (10, 0)


def test_a_child_has_children():
    process = start(start_one, 5)
    process.join(90)
    assert process.exitcode == 5


def test_a_pool_works():
    with fiber.Pool(2) as pool:
        assert pool.map(square, range(100)) == [x * x for x in range(100)]


def note(shared, key):
    shared[key] = os.getpid()


def test_managers_work():
    with fiber.Manager() as manager:
        shared = manager.dict()
        processes = [start(note, shared, key) for key in "ab"]
        for process in processes:
            process.join(60)
        assert shared.copy() == {"a": processes[0].pid, "b": processes[1].pid}


def test_a_pool_works_inside_a_worker():
    with fiber.Pool(1) as pool:
        assert pool.apply(pool_inside, (6,)) == [x * x for x in range(6)]


def pool_inside(n):
    with fiber.Pool(2) as pool:
        return pool.map(square, range(n))


def test_signals_arrive():
    with fiber.Pool(1) as pool:
        assert pool.apply(os.getpid) != os.getpid()
    process = start(signal.pause)
    assert process.pid
    process.terminate()
    process.join(60)
    assert process.exitcode == -signal.SIGTERM


def test_no_address_to_dial_is_sent():
    (url,) = runtime.current().urls()
    assert url.startswith("hub+tls+tcp://")


def slow_square(x):
    time.sleep(0.02)
    return x * x


def pass_on(incoming, outgoing):
    while (item := incoming.get(timeout=60)) is not None:
        outgoing.put(item)


class TestStreamsThatBreak:
    def test_a_map_has_its_results_and_no_worker_is_lost(self, cutter):
        with fiber.Pool(2) as pool:
            before = set(pool.map(slow_pid, range(20), 1))
            with cutter:
                assert pool.map(slow_square, range(200), 1) == [x * x for x in range(200)]
            assert set(pool.map(slow_pid, range(20), 1)) <= before
        assert cutter.cuts > 5

    def test_queues_deliver_each_item_exactly_once(self, cutter):
        there, back = fiber.Queue(), fiber.Queue()
        process = start(pass_on, there, back)
        with cutter:
            for item in range(200):
                there.put(item)
                assert back.get(timeout=60) == item
                time.sleep(0.01)
            there.put(None)
        process.join(60)
        assert process.exitcode == 0
        assert cutter.cuts > 5


def slow_pid(_):
    time.sleep(0.02)
    return os.getpid()


class TestLeases:
    """A silence is a silence, whatever carries the connection."""

    @pytest.fixture(autouse=True)
    def _short(self, remote_host):
        remote_host.use(far_streams=True, lease=2.0)

    def test_a_job_that_no_stream_reaches_is_given_up_and_ends_by_itself(self, cutter):
        process = start(signal.pause)
        pid = process.pid
        platform = runtime.current().backend.platform
        platform.available = False
        cutter.cut_all()
        process.join(60)
        assert process._popen.status.reason.kind is ReasonKind.LEASE
        until(lambda: not psutil.pid_exists(pid))
        platform.available = True

    def test_a_pool_goes_on_with_other_workers_when_one_falls_silent(self, cutter):
        with fiber.Pool(2) as pool:
            first = pool.apply(os.getpid)
            result = pool.map_async(slow_square, range(100), 1)
            os.kill(psutil.Process(first).ppid(), signal.SIGSTOP)
            os.kill(first, signal.SIGSTOP)
            with cutter:
                assert result.get(60) == [x * x for x in range(100)]

    def test_nothing_is_left_of_a_killed_master(self, remote_host, tmp_path):
        script = tmp_path / "master.py"
        script.write_text(MASTER)
        environ = remote_host.environ(far_streams="1", lease=2.0)
        with subprocess.Popen(
            [sys.executable, script],
            env={**environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            pids = [int(word) for word in program.stdout.readline().split()]
            pids += [psutil.Process(pid).ppid() for pid in pids]
            program.kill()
            until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
            assert remote_host.left() == []
            errors = program.stderr.read()
        assert errors.count("cannot dial this program") <= 1


MASTER = """
import os, signal
import fiber

def wait_for_ever():
    signal.pause()

if __name__ == "__main__":
    processes = [fiber.Process(target=wait_for_ever) for _ in range(2)]
    for process in processes:
        process.start()
    print(*(process.pid for process in processes), flush=True)
    signal.pause()
"""


def until(predicate, seconds=40):
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestSpeed:
    def test_it_is_logged_once_with_the_remedy(self, caplog):
        with fiber.Pool(2) as pool:
            pool.map(slow_square, range(20), 1)
            until(lambda: "MB/s" in caplog.text)
            pool.map(slow_square, range(20), 1)
        assert caplog.text.count("MB/s") == 1
        assert "fiber run -a" in caplog.text
