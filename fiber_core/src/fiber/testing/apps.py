"""User programs for the backend kit, by their names: copied to an empty folder and run as a script.

python apps.py PROGRAM [ARGUMENT]...

The run of a program and its results are lines of JSON on its output.
"""

# ruff: noqa: D101, D102, D103, PT017, SLF001, T201  programs of users: exit codes and lines tell

from __future__ import annotations

import functools
import json
import os
import platform
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import fiber
from fiber._runtime import runtime
from fiber.exceptions import BackendUnavailableError
from fiber.testing.witness import RUN_VARIABLE


def print_facts(**facts: Any) -> None:
    """Print facts as a line of JSON, which the kit reads."""
    print(json.dumps(facts), flush=True)


class OwnError(Exception):
    """An exception that only this program has."""


def fail(number: int) -> None:
    raise OwnError(number)


def square(number: int) -> int:
    return number * number


def die_once(died: Any) -> str:
    if not died.is_set():
        died.set()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def started(target: Any, *args: Any) -> fiber.Process:
    process = fiber.Process(target=target, args=args)
    process.start()
    return process


def ended(*processes: fiber.Process) -> None:
    for process in processes:
        process.join()
        assert process.exitcode == 0, process


# -- processes


def exit_with(code: int) -> None:
    sys.exit(code)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever() -> None:
    signal.pause()


def parent() -> None:
    child = started(exit_with, 3)
    child.join()
    sys.exit(child.exitcode)


class Subclassed(fiber.Process):
    def run(self) -> None:
        sys.exit(6 if fiber.current_process().name == "by name" else 1)


def code_of(process: fiber.Process) -> int | None:
    process.start()
    assert process.is_alive() or process.exitcode is not None
    process.join()
    return process.exitcode


def processes() -> None:
    """Processes: start, join, exit codes, signals, names, children of children."""
    assert code_of(fiber.Process(target=exit_with, args=(0,))) == 0
    assert code_of(fiber.Process(target=exit_with, kwargs={"code": 7})) == 7
    assert code_of(fiber.Process(target=fail, args=(1,))) == 1
    assert code_of(fiber.Process(target=die)) == -signal.SIGKILL
    assert code_of(fiber.Process(target=parent)) == 3
    assert code_of(Subclassed(name="by name")) == 6

    several = [started(exit_with, code) for code in range(4)]
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 1, 2, 3]

    for end, code in ((fiber.Process.terminate, -signal.SIGTERM), (fiber.Process.kill, -9)):
        process = started(wait_for_ever)
        assert process.pid
        end(process)
        process.join()
        assert process.exitcode == code, process.exitcode
    assert fiber.active_children() == []


# -- pools

state = {"base": 0}


def add(one: int, other: int) -> int:
    return one + other


def set_base(base: int) -> None:
    state["base"] = base


def plus_base(number: int) -> int:
    return state["base"] + number


def pools() -> None:
    """Pools: results in order, exceptions, initializers, closures, callbacks."""
    heard: list[Any] = []
    big = bytes(range(256)) * 4096
    with fiber.Pool(3, initializer=set_base, initargs=(100,)) as pool:
        assert pool.map(square, range(200)) == [n * n for n in range(200)]
        assert pool.map(square, range(50), chunksize=7) == [n * n for n in range(50)]
        assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
        assert pool.map(plus_base, range(5)) == [100, 101, 102, 103, 104]
        assert sorted(pool.imap_unordered(square, range(20))) == [n * n for n in range(20)]
        assert list(pool.imap(functools.partial(add, 5), range(5))) == [5, 6, 7, 8, 9]
        assert pool.apply(lambda data: data[::-1], (big,)) == big[::-1]
        pool.apply_async(square, (9,), callback=heard.append).get()
        try:
            pool.map(fail, [1])
        except OwnError as error:
            assert error.args == (1,)
            assert "fail" in str(error.__cause__)
        else:
            raise AssertionError
    assert heard == [81]


# -- queues


def put_range(queue: Any, name: str, count: int) -> None:
    for number in range(count):
        queue.put((name, number))


def take(source: Any, results: Any) -> None:
    got = []
    while (item := source.get()) is not None:
        got.append(item)
    results.put(got)


def answer(end: Any) -> None:
    while True:
        try:
            message = end.recv()
        except EOFError:
            return
        end.send(message * 2)


def work_through(tasks: Any) -> None:
    while True:
        item = tasks.get()
        tasks.task_done()
        if item is None:
            return


def queues() -> None:
    """Queues and pipes: many writers, order, big messages, ends that travel, the end of the last one."""
    several: list[Any] = [fiber.Queue(), fiber.SimpleQueue()]
    for queue in several:
        writers = [started(put_range, queue, name, 50) for name in "ab"]
        items = [queue.get() for _ in range(100)]
        ended(*writers)
        for name in "ab":
            assert [number for who, number in items if who == name] == list(range(50))

    numbers: Any = fiber.Queue()
    results: Any = fiber.Queue()
    readers = [started(take, numbers, results) for _ in range(2)]
    for item in [*range(100), None, None]:
        numbers.put(item)
    assert sorted(results.get() + results.get()) == list(range(100))
    ended(*readers)

    mine, its = fiber.Pipe()
    process = started(answer, its)
    its.close()
    big = b"x" * 3_000_000
    for message in ("ab", [1], big):
        mine.send(message)
        assert mine.recv() == message * 2
    mine.close()
    ended(process)

    tasks: Any = fiber.JoinableQueue()
    worker = started(work_through, tasks)
    for item in (1, 2, None):
        tasks.put(item)
    tasks.join()
    ended(worker)


# -- primitives


def count_up(value: Any, times: int) -> None:
    for _ in range(times):
        with value.get_lock():
            value.value += 1


def fill(array: Any, lock: Any, start: int) -> None:
    with lock:
        for index in range(start, len(array), 2):
            array[index] = index


def meet(barrier: Any, go: Any, permits: Any, condition: Any, arrived: Any) -> None:
    assert go.wait(30)
    barrier.wait(30)
    with permits:
        arrived.value += 1
    with condition:
        condition.notify()


def primitives() -> None:
    """Locks, semaphores, events, conditions, barriers, values and arrays between processes."""
    value = fiber.Value("i", 0)
    array = fiber.Array("i", 10)
    arrived = fiber.Value("i", 0)
    lock = fiber.Lock()
    counting = [started(count_up, value, 20) for _ in range(2)]
    ended(*counting, *(started(fill, array, lock, start) for start in (0, 1)))
    assert value.value == 40
    assert array[:] == list(range(10))

    barrier, go = fiber.Barrier(3), fiber.Event()
    permits, condition = fiber.BoundedSemaphore(1), fiber.Condition()
    meeting = [started(meet, barrier, go, permits, condition, arrived) for _ in range(2)]
    with condition:
        go.set()
        barrier.wait(30)
        assert condition.wait_for(lambda: arrived.value == 2, 30)
    ended(*meeting)


# -- managers


def write(shared: Any, numbers: Any, names: Any, key: str) -> None:
    shared[key] = len(key)
    numbers.append(len(key))
    names.last = key
    shared["inner"].append(key)


def managers() -> None:
    """Managers: dictionaries, lists and namespaces that all processes see, proxies within proxies."""
    with fiber.Manager() as manager:
        shared, numbers, names = manager.dict(), manager.list(), manager.Namespace()
        shared["inner"] = manager.list()
        for key in ("a", "bb", "ccc"):
            ended(started(write, shared, numbers, names, key))
        assert (shared["a"], shared["bb"], shared["ccc"]) == (1, 2, 3)
        assert list(numbers) == [1, 2, 3]
        assert names.last == "ccc"
        assert list(shared["inner"]) == ["a", "bb", "ccc"]


# -- many_tasks


def many_tasks(workers: str, count: str) -> None:
    """Many short tasks on as many workers as are asked for."""
    tasks = int(count)
    since = time.monotonic()
    with fiber.Pool(int(workers)) as pool:
        assert pool.map(square, range(tasks)) == [n * n for n in range(tasks)]
        took = time.monotonic() - since
    print_facts(measured={f"seconds for {tasks} tasks by a new pool of {workers}": took})


# -- busy_pool


def nap(seconds: float) -> tuple[str, int]:
    time.sleep(seconds)
    # containers count their processes alike
    return platform.node(), os.getpid()


def busy_pool() -> None:
    """A pool that works until it is killed."""
    signal.alarm(300)
    with fiber.Pool(3) as pool:
        found: set[tuple[str, int]] = set()
        while len(found) < 3:
            found.update(pool.map(nap, [0.05] * 6, chunksize=1))
        print_facts(ready=True)
        while True:
            pool.map(nap, [0.05] * 30)


# -- killed_worker


def worker_name(_: int) -> str:
    # long enough that both workers get some of these
    time.sleep(0.01)
    return fiber.current_process().name


def killed_worker() -> None:
    """A pool whose worker is killed during a task: no task is lost, and that one runs again."""
    died = fiber.Event()
    with fiber.Pool(2) as pool:
        hit = pool.apply_async(die_once, (died,))
        results = pool.map_async(square, range(500))
        assert died.wait(60)
        since = time.monotonic()
        assert hit.get(60) == "done"
        until_result = time.monotonic() - since
        # until tasks are done by two again: the one that stayed, and the other one's successor
        while len(set(pool.map(worker_name, range(8), chunksize=1))) < 2:
            pass
        print_facts(
            measured={
                "seconds from a worker's death to its task's result": until_result,
                "seconds from a worker's death to its successor's first result": time.monotonic()
                - since,
            }
        )
        assert results.get(60) == [n * n for n in range(500)]


# -- drained_worker

_TASKS = 60


def hold(ran: Any, began: Any, go: Any) -> str:
    if began.is_set():
        # its first worker was ended too early; the second one must not wait for what it has to do
        return "begun twice"
    began.set()
    ran.put(fiber.current_process().name)
    assert go.wait(60)
    return "held"


def name_after(ran: Any, number: int) -> str:
    time.sleep(0.02)
    ran.put(number)
    return fiber.current_process().name


def drained_worker() -> None:
    """A pool whose worker is drained: it finishes its task, others do the rest, and none runs twice."""
    ran: Any = fiber.SimpleQueue()
    began, go = fiber.Event(), fiber.Event()
    ended: list[float] = []
    with fiber.Pool(1) as pool:
        held = pool.apply_async(
            hold, (ran, began, go), callback=lambda _: ended.append(time.monotonic())
        )
        first = ran.get()
        (process,) = (one for one in pool._pool if one.name == first)
        child: Any = process._popen
        since = time.monotonic()
        # what the platform does by itself when it wants a job's place; the work takes a part of
        # the grace
        runtime.current().backend.terminate(child.job, grace=20.0)
        names = pool.starmap(name_after, [(ran, number) for number in range(_TASKS)])
        print_facts(
            measured={
                "seconds until others have done a leaving worker's work": time.monotonic() - since
            }
        )
        go.set()
        assert held.get(60) == "held", (
            f"the worker was ended {ended[0] - since:.1f} s after SIGTERM at the latest, before "
            f"another one had done its work; this test needs a platform that gives a job longer, "
            f"and says so by FIBER_GRACE"
        )
        assert first not in names, "a worker that has to go was given more"
        process.join(60)
        assert process.exitcode == 0, process.exitcode
    counts = Counter(ran.get() for _ in range(_TASKS))
    assert set(counts) == set(range(_TASKS)), "a task was run twice"
    assert ran.empty(), "a task was run twice"


# -- closed_descriptors


def close_descriptors() -> None:
    # as a daemonize() does, and whoever prepares for exec
    os.closerange(3, 1024)


def closed_descriptors() -> None:
    """A pool with a task that closes all descriptors: it is given up, and no other task is lost."""
    with fiber.Pool(2, max_attempts=1) as pool:
        since = time.monotonic()
        bad = pool.apply_async(close_descriptors)
        results = pool.map_async(square, range(500))
        try:
            bad.get(120)
        except fiber.WorkerCrashedError as error:
            assert "descriptors" in str(error), error
        else:
            raise AssertionError
        print_facts(
            measured={
                "seconds until a task that closed descriptors is given up": time.monotonic() - since
            }
        )
        assert results.get(120) == [n * n for n in range(500)]
        assert pool.map(square, range(10)) == [n * n for n in range(10)]


# -- outage


def is_away() -> bool:
    current = runtime.current()
    try:
        current.backend.list(current.run_id)
    except BackendUnavailableError:
        return True
    return False


def wait_until(away: bool) -> None:
    deadline = time.monotonic() + 60
    while is_away() is not away:
        assert time.monotonic() < deadline
        # no platform tells when it cannot be asked
        time.sleep(0.05)


def outage() -> None:
    """An unavailable platform: a map and a process wait for it, and go on."""
    died = fiber.Event()
    with fiber.Pool(1) as pool:
        assert pool.map(square, range(10)) == [n * n for n in range(10)]
        print_facts(ready=True)
        wait_until(away=True)
        # where the worker has not ended with the platform it does now, and none can be started
        hit = pool.apply_async(die_once, (died,))
        results = pool.map_async(square, range(500))
        process = fiber.Process(target=square, args=(3,))
        starter = threading.Thread(target=process.start)
        starter.start()
        starter.join(1)
        assert starter.is_alive(), "a process does not wait for the platform"
        assert not results.ready(), "a map does not wait for the platform"
        print_facts(waiting=True)
        wait_until(away=False)
        since = time.monotonic()
        assert results.get(60) == [n * n for n in range(500)]
        assert hit.get(60) == "done"
        starter.join(60)
        process.join(60)
        assert process.exitcode == 0, process.exitcode
        print_facts(
            measured={"seconds from a platform's return to all work done": time.monotonic() - since}
        )


PROGRAMS: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        processes,
        pools,
        queues,
        primitives,
        managers,
        many_tasks,
        busy_pool,
        killed_worker,
        drained_worker,
        closed_descriptors,
        outage,
    )
}


def main() -> None:
    """Print this program's run, put it into the environment of all that it starts, and run it."""
    run_id = runtime.current().run_id
    # jobs inherit the program's environment
    os.environ[RUN_VARIABLE] = run_id
    print_facts(run=run_id)
    PROGRAMS[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
