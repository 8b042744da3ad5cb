"""A manager's process is killed at a random moment: whoever calls, or waits, hears of it at once."""

import threading
import time

import pytest

import fiber
import process_signals
import soak
from children import PATIENCE, killed, killed_meanwhile, start
from fiber.managers import AsyncManager, SyncManager, gather
from waiting import until

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(3600 if soak.is_full() else 120),
]

#: what users of multiprocessing catch
LOST = (EOFError, ConnectionError)


def read_and_write(shared):
    numbers, table, queue = shared["numbers"], shared["table"], shared["queue"]
    while True:
        numbers.append(1)
        table["x"] = numbers.pop()
        queue.put(table.copy())
        queue.get()


def make_proxies(table):
    while True:
        again = table["again"]
        assert again.items() == [("y", 1)] and next(iter(again)) == "y"


def call_in_many_ways(shared):
    """How each way to use a manager ended, by a thread each: whether as it should, and how."""
    ways = {
        "calls": lambda: read_and_write(shared),
        "proxies": lambda: make_proxies(shared["table"]),
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
        thread.join(PATIENCE)
    return {way: ended.get(way, (False, "still waits")) for way in ways}


def wait_for_word(condition):
    with condition:
        condition.wait()


def report(shared, reports):
    reports.put(call_in_many_ways(shared))


def test_a_killed_manager_is_heard_of_by_everybody():
    for current in soak.rounds("killed manager", 200):
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
        users = [start(report, shared, reports) for _ in range(2)]
        users.append(threading.Thread(target=report, args=(shared, reports)))
        users[-1].start()
        time.sleep(current.rng.uniform(0, 0.5))
        process_signals.kill(manager._process)
        found = [reports.get(timeout=PATIENCE) for _ in users]
        for user in users:
            user.join(PATIENCE)

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


def test_handles_of_a_killed_manager_end_and_those_of_others_go_on():
    for current in soak.rounds("killed asynchronous manager", 200):
        dying, living = Simulators(), Simulators()
        busy, idle, other = dying.Simulator(), dying.Simulator(), living.Simulator()
        with killed_meanwhile(dying._process, current.rng, latest=0.2):
            handles = [idle.wait(), *(busy.step(n) for n in range(100))]
            others = [other.step(n) for n in range(100)]

            assert gather(others, PATIENCE) == list(range(100))
        results = gather(handles, PATIENCE, return_exceptions=True)
        assert isinstance(results[0], LOST)
        done = [result for result in results[1:] if not isinstance(result, LOST)]
        assert done == list(range(len(done)))
        assert isinstance(busy.step(0).wait(PATIENCE), bool)
        with pytest.raises(LOST):
            busy.step(0).get(PATIENCE)
        living.shutdown()
        dying.shutdown()
        current.note(done=len(done))


def take(own, queue, lock, condition, numbers):
    """Wait in several ways at once, holding what is its own."""
    own["numbers"] = numbers
    for way in (queue.get, lock.acquire):
        threading.Thread(target=way, daemon=True).start()
    with condition:
        numbers.append(1)
        condition.wait()


def test_killed_users_cost_the_others_nothing():
    """What they alone held dies, and what they waited for is for others."""
    with SyncManager() as manager:
        numbers, queue = manager.list(), manager.Queue()
        lock, condition = manager.Lock(), manager.Condition()
        lock.acquire()
        before = manager._number_of_objects()
        users = [start(take, manager.dict(), queue, lock, condition, numbers) for _ in range(3)]
        until(lambda: len(numbers) == 3)
        # a lock that somebody held would stay taken: it is free once all of them wait
        with condition:
            pass
        for user in users:
            killed(user)
        until(lambda: manager._number_of_objects() <= before)
        queue.put("not lost with those that waited")
        assert queue.get(timeout=PATIENCE) == "not lost with those that waited"
        lock.release()
        assert lock.acquire(timeout=PATIENCE)
        with condition:
            condition.notify_all()
        assert condition.acquire(timeout=PATIENCE)


def hold(condition, holds, waits):
    with condition:
        holds.set()
        if waits:
            condition.wait()
        threading.Event().wait()


@pytest.mark.parametrize("waits", [False, True], ids=["and does not wait", "and was notified"])
def test_a_condition_stays_taken_by_a_killed_process_that_held_it_alone(waits):
    """As the standard library's; one that waited to have it again when it was killed is no holder."""
    with SyncManager() as manager:
        condition, holds = manager.Condition(), manager.Event()
        user = start(hold, condition, holds, waits)
        assert holds.wait(PATIENCE)
        if waits:
            # taken, so that it waits
            with condition:
                condition.notify()
                killed(user)
        else:
            killed(user)
        assert condition.acquire(timeout=PATIENCE if waits else 0.2) is waits
