"""Waits that a signal ends wherever it arrives, in turns, and looks before them."""

import itertools
import sys

from commands import ran
from fiber._base import threads
from fiber._base.threads import TURN, Looks, in_turns, turn

#: the signal is delivered to another thread while the main one waits, as it may be
PROGRAM = """
import signal, threading, time
import fiber
from fiber._base import threads
from fiber.cli.session import Watcher
from fiber.executor import Future

threads.TURN = 0.5

def interrupt(main, begun):
    begun.wait()
    switches = None
    while switches != (switches := [s for s in open(main) if s.startswith("voluntary_ctxt")]):
        time.sleep(0.05)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

if __name__ == "__main__":
    process = fiber.Process(target=time.sleep, args=(600,), daemon=True)
    process.start()
    status = f"/proc/self/task/{threading.get_native_id()}/status"
    (reader, writer), tasks = fiber.Pipe(), fiber.JoinableQueue()
    tasks.put(1)
    with fiber.Pool(1) as pool, fiber.Manager() as manager:
        waiting = pool.map_async(time.sleep, [600])
        for wait in (
            waiting.get, waiting.wait, pool.imap(time.sleep, [600]).next, process.join, tasks.join,
            reader.recv, fiber.Queue().get, manager.Queue().get, fiber.Event().wait,
            fiber.Semaphore(0).acquire, lambda: fiber.connection.wait([reader]),
            lambda: fiber.Queue().get(timeout=500), Future(None, 0).result,
            Watcher(None).get,
        ):
            begun = threading.Event()
            thread = threading.Thread(target=interrupt, args=(status, begun))
            thread.start()
            try:
                # not before: start() waits, too
                begun.set()
                wait()
            except KeyboardInterrupt:
                print(end="interrupted ")
            thread.join()
"""


def test_a_wait_is_in_turns_and_ends_with_its_time(monkeypatch):
    clock, asked = [0.0], []

    def wait(seconds):
        asked.append(seconds)
        clock[0] += seconds
        return clock[0] in {3.5, 7}

    monkeypatch.setattr(threads.time, "monotonic", lambda: clock[0])
    assert [in_turns(wait, timeout) for timeout in (2.5, 0, 50)] == [False, False, True]
    assert asked == [1, 1, 0.5, 0, 1]
    clock[0] = 4
    assert in_turns(wait)
    assert (turn(None), turn(7), turn(0.1)) == (TURN, TURN, 0.1)


def test_who_has_looked_in_vain_sleeps_at_once_many_times_and_then_looks_again(monkeypatch):
    monkeypatch.setattr(threads, "HAS_TWO_CPUS", True)
    looks = Looks(5)
    again = [0] * Looks.AT_ONCE
    assert [looks.begin() for _ in range(80)] == [5] * 8 + again + [5] + again[:7]
    looks.found()
    assert [looks.begin() for _ in range(9)] == [5] * 8 + [0]
    monkeypatch.setattr(threads, "HAS_TWO_CPUS", False)
    assert Looks(5).begin() == 0


def test_where_others_have_the_cpu_between_two_looks_it_is_looked_less_and_less(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(threads, "HAS_TWO_CPUS", True)
    monkeypatch.setattr(threads.time, "monotonic", lambda: next(clock))
    looks = Looks(1)

    def sleeps():
        return sum(1 for _ in iter(looks.begin, 1))

    assert (looks.give_way(), sleeps()) == (False, 2 * Looks.AT_ONCE)
    assert (looks.give_way(), sleeps()) == (False, 4 * Looks.AT_ONCE)
    assert [looks.give_way() for _ in range(20)] == [False] * 20
    assert sleeps() == Looks.MOST_AT_ONCE
    looks.found()
    monkeypatch.setattr(Looks, "LONG", 1)
    assert looks.give_way()


def test_ctrl_c_ends_a_wait_also_where_another_thread_has_the_signal(tmp_path):
    path = tmp_path / "waits.py"
    path.write_text(PROGRAM, encoding="utf-8")
    done = ran([sys.executable, path])
    assert done.stdout.split() == ["interrupted"] * 14, done.stderr
