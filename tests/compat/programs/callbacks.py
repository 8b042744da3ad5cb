"""Callbacks of pools: when they have run, where, in which order, and with what."""

import multiprocessing
import threading
from multiprocessing import Pool


def double(number):
    return 2 * number


def refuse(number):
    raise ValueError(f"refused {number}")


def have_run_when_the_caller_goes_on(pool):
    late = 0
    for _ in range(40):
        got = []
        pool.apply_async(double, (1,), callback=got.append).get()
        late += not got
        pool.map_async(double, range(3), callback=got.extend).wait()
        late += len(got) < 4
        pool.starmap_async(double, [(1,), (2,)], callback=got.extend).wait(60)
        late += len(got) < 6
        result = pool.apply_async(refuse, (3,), error_callback=got.append)
        result.wait()
        late += len(got) < 7
    print("late:", late, got[:6], repr(got[6]), result.ready(), result.successful())


def run_in_one_thread_of_the_parent(pool):
    threads = []

    def note(_):
        threads.append(threading.current_thread())

    for _ in range(5):
        pool.apply_async(double, (1,), callback=note, error_callback=note).get()
    print(len(set(threads)), threads[0] is threading.main_thread())


def come_in_the_order_in_which_tasks_end():
    order = []
    with Pool(1) as pool:
        results = [pool.apply_async(double, (n,), callback=order.append) for n in range(20)]
        for result in results:
            result.wait()
    print(order)


def get_one_error_of_many(pool):
    good, bad = [], []
    result = pool.map_async(refuse, [7, 7, 7], 1, callback=good.append, error_callback=bad.append)
    try:
        result.get()
    except ValueError as error:
        print("raised:", error, good, [str(each) for each in bad])


def may_be_both(pool):
    got = []
    for work in (double, refuse):
        pool.apply_async(work, (4,), {}, got.append, lambda error: got.append(str(error))).wait()
    print(got)


def nothing_is_called_for_nothing(pool):
    got = []
    empty = pool.map_async(double, [], error_callback=got.append)
    print(empty.get(), empty.ready(), got)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    with Pool(2) as pool:
        have_run_when_the_caller_goes_on(pool)
        run_in_one_thread_of_the_parent(pool)
        get_one_error_of_many(pool)
        may_be_both(pool)
        nothing_is_called_for_nothing(pool)
    come_in_the_order_in_which_tasks_end()
