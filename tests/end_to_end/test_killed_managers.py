"""A manager's process is killed at a random moment: whoever calls, or waits, hears of it at once."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import threading
import time

import psutil
import pytest

import fiber
import process_signals
import soak
from fiber.managers import AsyncManager, SyncManager, gather

pytestmark = pytest.mark.timeout(3600 if soak.is_full() else 120)

#: what users of multiprocessing catch
LOST = (EOFError, ConnectionError)


def read_and_write(shared):
    numbers, table, queue = shared["numbers"], shared["table"], shared["queue"]
    while True:
        numbers.append(1)
        table["x"] = numbers.pop()
        queue.put(table.copy())
        queue.get()


def make(shared):
    table = shared["table"]
    while True:
        again = table["again"]
        assert again.items() == [("y", 1)] and next(iter(again)) == "y"


def call_in_many_ways(shared):
    """How each way to use a manager ended, by a thread each: whether as it should, and how."""
    ways = {
        "calls": lambda: read_and_write(shared),
        "proxies": lambda: make(shared),
        "get": shared["empty"].get,
        "acquire": shared["lock"].acquire,
        "event": shared["event"].wait,
        "barrier": shared["barrier"].wait,
        "join": shared["tasks"].join,
        "condition": lambda: wait_for_word(shared["condition"]),
    }
    ended = {}

    def end(way, action):
        try:
            action()
        except BaseException as error:
            # told in words: the exception itself would keep proxies alive by its traceback
            ended[way] = isinstance(error, LOST), f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=end, args=item, daemon=True) for item in ways.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return {way: ended.get(way, (False, "still waits")) for way in ways}


def wait_for_word(condition):
    with condition:
        condition.wait()


def report(shared, reports):
    reports.put(call_in_many_ways(shared))


@pytest.mark.any_backend
def test_a_killed_manager_is_heard_of_by_everybody(shared_runtime):
    for current in soak.rounds("killed manager", 200, least=4):
        rng = random.Random(current.seed)
        manager = SyncManager()
        manager.start()
        shared = {
            "numbers": manager.list(),
            "table": manager.dict(again=manager.dict(y=1)),
            "queue": manager.Queue(),
            "empty": manager.Queue(),
            "lock": manager.Lock(),
            "event": manager.Event(),
            "barrier": manager.Barrier(9),
            "tasks": manager.JoinableQueue(),
            "condition": manager.Condition(),
        }
        shared["lock"].acquire()
        shared["tasks"].put(1)
        reports = fiber.Queue()
        users = [fiber.Process(target=report, args=(shared, reports)) for _ in range(2)]
        users.append(threading.Thread(target=report, args=(shared, reports)))
        for user in users:
            user.start()
        time.sleep(rng.uniform(0, 0.5))
        process_signals.kill(manager._process)
        found = [reports.get(timeout=60) for _ in users]
        for user in users:
            user.join(60)

        wrong = {way: text for one in found for way, (good, text) in one.items() if not good}
        assert wrong == {}, f"seed {current.seed}"
        with pytest.raises(LOST):
            manager.dict()
        manager.shutdown()
        current.note(users=len(users))


class Simulator:
    def step(self, n):
        return n

    def wait(self):
        threading.Event().wait()


class Simulators(AsyncManager):
    pass


Simulators.register("Simulator", Simulator)


@pytest.mark.any_backend
def test_handles_of_a_killed_manager_end_and_those_of_others_go_on(shared_runtime):
    for current in soak.rounds("killed asynchronous manager", 200, least=4):
        rng = random.Random(current.seed)
        dying, living = Simulators(), Simulators()
        busy, idle, other = dying.Simulator(), dying.Simulator(), living.Simulator()
        killer = threading.Timer(rng.uniform(0, 0.2), process_signals.kill, (dying._process,))
        killer.start()
        handles = [idle.wait(), *(busy.step(n) for n in range(100))]
        others = [other.step(n) for n in range(100)]

        assert gather(others, 60) == list(range(100))
        killer.join()
        results = gather(handles, 60, return_exceptions=True)
        assert isinstance(results[0], LOST)
        done = [result for result in results[1:] if not isinstance(result, LOST)]
        assert done == list(range(len(done)))
        assert isinstance(busy.step(0).wait(60), bool)
        with pytest.raises(LOST):
            busy.step(0).get(60)
        living.shutdown()
        dying.shutdown()
        current.note(done=len(done))


def take(own, queue, lock, condition, numbers):
    """Wait in several ways at once, holding what is its own."""
    own["numbers"] = numbers
    numbers.append(1)
    ways = (queue.get, lock.acquire, functools.partial(wait_for_word, condition))
    for way in ways:
        threading.Thread(target=way, daemon=True).start()
    numbers.append(1)
    threading.Event().wait()


@pytest.mark.any_backend
def test_killed_users_cost_the_others_nothing(shared_runtime):
    """What they alone held dies, and what they waited for is for others."""
    with SyncManager() as manager:
        numbers, queue = manager.list(), manager.Queue()
        lock, condition = manager.Lock(), manager.Condition()
        lock.acquire()
        before = manager._number_of_objects()
        users = [
            fiber.Process(target=take, args=(manager.dict(), queue, lock, condition, numbers))
            for _ in range(3)
        ]
        for user in users:
            user.start()
        deadline = time.monotonic() + 60
        while len(numbers) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for user in users:
            process_signals.kill(user)
            user.join(60)
        while manager._number_of_objects() > before:
            assert time.monotonic() < deadline, manager._debug_info()
            time.sleep(0.01)
        queue.put("not lost with those that waited")
        assert queue.get(timeout=20) == "not lost with those that waited"
        lock.release()
        assert lock.acquire(timeout=20)
        with condition:
            condition.notify_all()
        assert condition.acquire(timeout=20)


MASTER = """
import sys, time
from fiber.managers import SyncManager

def work(numbers):
    while True:
        numbers.append(1)
        numbers.pop()

if __name__ == "__main__":
    import fiber
    manager = SyncManager()
    manager.start()
    process = fiber.Process(target=work, args=(manager.list(),))
    process.start()
    print(manager._process.pid, process.pid, flush=True)
    time.sleep(600)
"""


def test_a_killed_master_takes_its_manager_with_it(tmp_path):
    script = tmp_path / "master.py"
    script.write_text(MASTER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as master:
        children = [psutil.Process(int(word)) for word in master.stdout.readline().split()]
        master.kill()
    gone, alive = psutil.wait_procs(children, timeout=10)

    assert alive == []
    assert len(gone) == 2
