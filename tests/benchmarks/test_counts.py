"""What a task costs in frames, bytes, system calls, waits and copies, whatever the clock says.

Bounds are two to three times what was counted when they were set. A change that exceeds one makes
every task dearer on every machine; one that stays far below should lower it.
"""

import os
import sys
import tracemalloc

import pytest
from benchmarks.counters import Costs, counting

import counted_tasks as tasks
import fiber

pytestmark = [
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counts are read from /proc"),
    pytest.mark.skipif(
        bool(os.environ.get("FIBER_LOCAL_TRANSPORT")),
        reason="counts are those of streams between processes of one host",
    ),
]


@pytest.fixture(scope="module")
def pool(shared_runtime):
    with fiber.Pool(2, initializer=tasks.own_clock) as made:
        made.map(tasks.pause, range(8))
        yield made
        made.close()
        made.join()


def pids(pool):
    return [process.pid for process in pool._pool]


def within(costs, most):
    """Each count is below its bound, and something was counted at all."""
    assert costs.frames > 0 and costs.calls > 0
    told = "\n".join(
        f"{name}: {found:.4f} a task, {limit} are the most"
        for name, found, limit in zip(Costs._fields, costs, most, strict=True)
        if found > limit
    )
    assert not told, told


def map_(pool, function, count):
    assert pool.map(function, range(count)) == list(range(count))


def imap(pool, function, count):
    assert list(pool.imap(function, range(count))) == list(range(count))


def apply(pool, function, count):
    for number in range(count):
        assert pool.apply(function, (number,)) == number


@pytest.mark.parametrize(
    "method, function, count, most",
    [
        (map_, tasks.micro, 20_000, Costs(frames=0.01, bytes=25, calls=0.02, waits=0.02)),
        (map_, tasks.milli, 2_000, Costs(frames=1.2, bytes=170, calls=1.0, waits=1.0)),
        (imap, tasks.micro, 5_000, Costs(frames=0.06, bytes=40, calls=0.1, waits=0.15)),
        (apply, tasks.micro, 300, Costs(frames=2.1, bytes=330, calls=6, waits=8)),
    ],
    ids=["map of no-ops", "map of 1 ms", "imap of no-ops", "apply"],
)
def test_a_task_costs_no_more_than_it_did(pool, method, function, count, most):
    method(pool, function, count)  # the function is known, its pace too

    with counting(pids(pool)) as counts:
        method(pool, function, count)

    within(counts.each(count), most)


def test_a_large_argument_and_its_result_cross_once_and_are_held_three_times_at_most():
    payload = os.urandom(8_000_000)
    with fiber.Pool(1) as pool:
        pool.apply(tasks.same, (payload,))
        pool.apply(tasks.begin_tracing)
        tracemalloc.start()
        try:
            with counting() as counts:
                assert pool.apply(tasks.same, (payload,)) == payload
            here = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        there = pool.apply(tasks.most_traced)
        pool.close()
        pool.join()

    # there and back
    assert counts.bytes < 2.05 * len(payload)
    assert counts.frames <= 12
    # put together from frames, unpickled, and there the result's pickle
    assert here < 3.5 * len(payload)
    assert there < 3.5 * len(payload)


def test_what_another_process_puts_costs_no_more_than_it_did():
    items, go = fiber.Queue(), fiber.SimpleQueue()
    process = fiber.Process(target=tasks.put_in_rounds, args=(items, 1_000, go))
    process.start()

    def one_round():
        with counting([process.pid]) as counts:
            go.put(True)
            for _ in range(1_000):
                items.get()
        return counts.each(1_000)

    one_round()  # its pace is known
    rounds = [one_round() for _ in range(7)]

    go.put(False)
    process.join()
    # a writer that has to wait for a processor sends what it has: some round is undisturbed
    within(min(rounds), Costs(frames=0.2, bytes=60, calls=0.4, waits=0.6))


def test_what_another_process_gets_costs_no_more_than_it_did():
    items, done, go = fiber.Queue(), fiber.SimpleQueue(), fiber.SimpleQueue()
    process = fiber.Process(target=tasks.get_all, args=(items, 5_000, done, go))
    process.start()
    for number in range(2_500):
        items.put(number)

    with counting([process.pid]) as counts:
        for number in range(2_500):
            items.put(number)
        done.get()

    go.put(None)
    process.join()
    within(counts.each(5_000), Costs(frames=0.3, bytes=60, calls=0.5, waits=0.5))


def test_a_round_trip_over_a_pipe_costs_no_more_than_it_did():
    here, there = fiber.Pipe()
    process = fiber.Process(target=tasks.echo, args=(there,))
    process.start()
    here.send(0)
    assert here.recv() == 0

    with counting([process.pid]) as counts:
        for number in range(300):
            here.send(number)
            assert here.recv() == number

    here.send(None)
    process.join()
    within(counts.each(300), Costs(frames=3.5, bytes=250, calls=8, waits=10))
