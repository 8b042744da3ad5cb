"""Every type of synchronization that a context makes, between processes."""

import functools
import multiprocessing
import sys
import time
from threading import BrokenBarrierError

mp = multiprocessing.get_context("spawn")


def run(target, count, *args):
    processes = [mp.Process(target=target, args=args, name=f"part {i}") for i in range(count)]
    for process in processes:
        process.start()
    return processes


def join(processes):
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def be_one_of_few(semaphore, mutex, running, most):
    with semaphore:
        with mutex:
            running.value += 1
            most.value = max(most.value, running.value)
        time.sleep(0.02)
        with mutex:
            running.value -= 1


def with_semaphores():
    mutex, running, most = mp.RLock(), mp.Value("i", 0), mp.Value("i", 0)
    # kept: the standard library's is gone with its last name here, where children begin afresh
    few = mp.Semaphore(2)
    codes = join(run(be_one_of_few, 5, few, mutex, running, most))
    print("semaphore:", codes, running.value, most.value <= 2)
    with few:
        print(few.get_value())
    few.release()
    print(few, few.get_value())
    bounded = mp.BoundedSemaphore(1)
    print(bounded, bounded.acquire(), bounded.acquire(timeout=0.01), bounded.release())
    fails(bounded.release)


def sleep_until_told(condition, sleeping, woken):
    with condition:
        sleeping.release()
        condition.wait()
        woken.put(mp.current_process().name)


def with_condition():
    condition, sleeping, woken = mp.Condition(), mp.Semaphore(0), mp.Queue()
    processes = run(sleep_until_told, 3, condition, sleeping, woken)
    for _ in processes:
        sleeping.acquire()
    with condition:
        condition.notify()
    first = woken.get()
    with condition:
        condition.notify_all()
    rest = {woken.get(), woken.get()}
    print("condition:", join(processes), sorted({first, *rest}))
    for call in (condition.wait, condition.notify, condition.release):
        fails(call)
    for kind in (mp.RLock, mp.Lock):
        condition = mp.Condition(kind())
        with condition:
            print(condition, condition.wait(0.01), condition.wait(0), condition.wait(-1))
            print(condition.wait_for(lambda: "yes", 0), condition.wait_for(list, 0.01))


def wait_for_event(event, seen):
    seen.put((event.wait(0.001), event.wait(), event.is_set()))


def with_event():
    event, seen = mp.Event(), mp.Queue()
    processes = run(wait_for_event, 2, event, seen)
    print(event.is_set(), event.wait(0.2))
    event.set()
    results = [seen.get() for _ in processes]
    print("event:", join(processes), sorted(result[1:] for result in results))
    event.clear()
    print(event.is_set())


def meet(barrier, met, places):
    places.put(barrier.wait())
    with met:
        met.value += 1
    places.put(barrier.wait() + 10)


def never_meet(barrier, places):
    try:
        barrier.wait(0.1)
    except BrokenBarrierError:
        places.put("broken")


def with_barrier():
    met, places = mp.Value("i", 0), mp.Queue()
    barrier = mp.Barrier(3, functools.partial(places.put, 20))
    processes = run(meet, 3, barrier, met, places)
    found = sorted(places.get() for _ in range(8))
    print("barrier:", join(processes), found, met.value, barrier.parties, barrier.n_waiting)
    join(run(never_meet, 1, barrier, places))
    print(places.get(), barrier.broken)
    barrier.reset()
    print(barrier.broken)


def print_slowly(lock, word):
    with lock:
        for letter in word:
            sys.stdout.write(letter)
            sys.stdout.flush()
        print(flush=True)


def with_locks():
    lock = mp.RLock()
    print("rlock:", lock, lock.acquire(), lock.acquire(timeout=0))
    print(lock, lock.release(), lock.release())
    fails(lock.release)
    lock = mp.Lock()
    print(lock)
    with lock as entered:
        print(entered, lock, flush=True)
        if sys.version_info >= (3, 14):
            print(lock.locked(), mp.Lock().locked())
        blocked = run(print_slowly, 1, lock, "blocked")
        blocked[0].join(0.2)
        print("it waits:", blocked[0].is_alive(), flush=True)
    print(join(blocked), lock.acquire(block=False), lock.acquire(timeout=0.05), lock.release())
    fails(lock.release)


def fails(call, *args):
    try:
        call(*args)
    except (AssertionError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    with_semaphores()
    with_condition()
    with_event()
    with_barrier()
    with_locks()
