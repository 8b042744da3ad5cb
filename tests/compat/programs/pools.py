"""Everything that a pool does, with tasks that fail or are late, and an end that is early or not."""

import os
import time
from multiprocessing import Pool, TimeoutError, current_process  # noqa: A004

state = {}


def prepare(name, factor):
    state["name"], state["factor"] = name, factor


def scaled(number):
    me = current_process()
    return state["name"], number * state["factor"], os.getpid(), me.daemon, type(me.name)


def times(a, b):
    return a * b


def call(both):
    function, args = both
    return f"{function.__name__}{args} = {function(*args)}"


def inverse(x):
    return 1.0 / (x - 3.0)


def explain(title, function):
    try:
        print(f"{title}: {function()}")
    except (NotImplementedError, StopIteration, ValueError, ZeroDivisionError) as error:
        print(f"{title}: {type(error).__name__}: {error}")


def misses(get):
    """How often something was waited for in vain."""
    count = 0
    while True:
        try:
            get(0.02)
        except TimeoutError:
            count += 1
        except StopIteration:
            return count
        else:
            return count


def with_results(pool):
    tasks = [(times, (i, 6)) for i in range(8)] + [(pow, (i, 3)) for i in range(8)]
    results = [pool.apply_async(call, (task,)) for task in tasks]
    print("apply_async", *[one.get(timeout=60) for one in results], sep="\n  ")
    print(results[0].ready(), results[0].successful())
    print("imap", *pool.imap(call, tasks), sep="\n  ")
    print("imap_unordered", *sorted(pool.imap_unordered(call, tasks)), sep="\n  ")
    print("map", *pool.map(call, tasks), sep="\n  ")
    print("starmap", pool.starmap(times, [("a", 1), ("b", 2)]))
    print("another process:", pool.apply(os.getpid) != os.getpid())


def with_errors(pool):
    explain("apply", lambda: pool.apply(inverse, (3,)))
    explain("map", lambda: pool.map(inverse, list(range(9))))
    outcomes = pool.imap(inverse, list(range(8)))
    for i in range(9):
        explain(f"item {i}", lambda: f"{next(outcomes):.3f}")
    explain("itself", lambda: pool.apply(len, (pool,)))
    explain("no item in a chunk", lambda: pool.imap(abs, range(3), chunksize=0))
    explain("joined too early", pool.join)
    for few in (0, -1):
        explain("no worker", lambda few=few: Pool(few))


def with_patience(pool):
    late = pool.apply_async(time.sleep, (0.5,))
    for timeout in (0.02, 0, -1):
        late.wait(timeout)
    print(late.ready())
    try:
        late.successful()
    except ValueError as error:
        print("nobody knows yet:", str(error).endswith("not ready"))
    print("was waited for several times:", misses(late.get) > 1)
    lazily = pool.imap(time.sleep, [0.3])
    print("so was the iterator:", misses(lazily.next) > 1)
    # the pool ends before it
    pool.apply_async(time.sleep, (300,))
    print("the others work:", pool.apply(abs, (-9,)))


if __name__ == "__main__":
    with Pool(processes=3) as pool:
        with_results(pool)
        with_errors(pool)
        with_patience(pool)
    explain("terminated", lambda: pool.apply_async(abs, (1,)))

    with Pool(2, initializer=prepare, initargs=("scale", 11)) as pool:
        before = pool.map_async(scaled, range(20))
        pool.close()
        pool.join()
        print("closed and joined:", [result[:2] for result in before.get()[-3:]])
        print("daemons:", {result[3:] for result in before.get()})
    with Pool(1, prepare, ("short lives", 2), maxtasksperchild=3) as pool:
        results = pool.map(scaled, range(9), chunksize=1)
        print([result[1] for result in results])
        print("workers:", len({result[2] for result in results}))
    print("here nothing changed:", state)
