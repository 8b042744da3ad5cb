"""``Pool.apply`` on one host: the thread that calls it reads what the worker says itself."""

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import fiber
from fiber._runtime import runtime
from fiber._wire import unix
from fiber._wire.reading import Reading
from fiber.exceptions import TerminatedError
from interrupts import interrupted_while_reading
from pool_tasks import die_once, note_and_nap, same, square
from wire_world import TIMEOUT, in_thread, readable, until

pytestmark = [
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.skipif(sys.platform != "linux", reason="the handler thread reads"),
]


def readings():
    """Of all connections that threads that wait have read."""
    connections = runtime.current().endpoint._listeners["unix"]._connections
    return [one.reading for one in list(connections.values()) if one.reading is not None]


def share(pool):
    """From now on threads that wait read the connection of the only worker."""
    while not readings():
        assert pool.apply(square, (2,)) == 4


@contextlib.contextmanager
def held_handler_thread():
    """Until the end of the block the handler thread does nothing."""
    holds, go = threading.Event(), threading.Event()

    def hold():
        holds.set()
        go.wait(TIMEOUT)

    runtime.current().reactor.call_soon(hold)
    assert holds.wait(TIMEOUT)
    try:
        yield
    finally:
        assert not go.is_set()
        go.set()


@pytest.fixture
def pool():
    with fiber.Pool(1) as pool:
        share(pool)
        yield pool
    pool.join()


def test_no_other_thread_of_the_program_takes_part(pool):
    with held_handler_thread():
        assert [pool.apply(square, (x,)) for x in range(3)] == [0, 1, 4]
        with pytest.raises(TypeError, match="multiply sequence"):
            pool.apply(square, ("text",))


class PatientPool(fiber.Pool):
    is_patient = False

    def apply_async(self, *args):
        result = super().apply_async(*args)
        for reading in readings() if self.is_patient else ():
            assert readable(reading._source.fd)
            with held_handler_thread():
                # it has had time to read
                assert readable(reading._source.fd, seconds=0), "another thread has read it"
        return result


def test_an_answer_that_comes_before_the_wait_is_read_by_no_other_thread():
    with PatientPool(1) as pool:
        share(pool)
        with held_handler_thread():
            # by now it leaves the connection to the reading
            pass
        assert pool.apply(square, (2,)) == 4
        pool.is_patient = True
        assert [pool.apply(square, (x,)) for x in range(3)] == [0, 1, 4]
    pool.join()


def test_an_interrupt_anywhere_harms_no_other_task(pool):
    for _ in range(20):
        # classes of values compile what makes them only then
        pool.apply(square, (2,))
    was_interrupted, number = True, 0
    while was_interrupted:
        number += 1
        with held_handler_thread():
            # once it was sent
            _, was_interrupted = interrupted_while_reading(
                number, lambda: pool.apply(square, (3,)), Reading._lead
            )
        for reading in readings():
            if reading._role.locked():
                # by an interrupt just behind its acquisition, or before its release: the handler thread
                # reads from then on, and the places that follow would not be met
                reading._role.release()
        with held_handler_thread():
            # by now a connection that was closed has ended
            pass
        assert pool.apply(square, (number,)) == number**2
        share(pool)
    assert number > 50
    pool.close()
    in_thread(pool.join)()


def test_only_so_many_connections_take_descriptors_for_it(pool, monkeypatch):
    monkeypatch.setattr(unix, "_MOST_SHARED", 1)
    with fiber.Pool(1) as other:
        for _ in range(3):
            assert other.apply(square, (2,)) == 4
            with held_handler_thread():
                # by now its connection would be shared
                pass
        assert len(readings()) == 1
    other.join()
    # a place is free again once the one that has it has ended
    pool.terminate()
    pool.join()
    until(lambda: not readings())
    with fiber.Pool(1) as other:
        share(other)
    other.join()


def test_a_worker_that_dies_meanwhile_is_replaced_and_the_task_runs_again(pool, tmp_path):
    assert pool.apply(die_once, (str(tmp_path / "flag"),)) == "survived"
    assert pool.apply(square, (3,)) == 9


def test_what_is_too_large_or_for_others_comes_by_the_handler_thread(pool):
    large = bytes(10**7)
    assert pool.apply(same, (large,)) == large
    others = pool.map_async(same, range(2000))
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda x: pool.apply(square, (x,)), range(200))) == [
            x * x for x in range(200)
        ]
    assert others.get() == list(range(2000))


def test_an_end_of_the_pool_ends_the_wait(pool, tmp_path):
    begun = tmp_path / "begun"

    def terminate():
        until(begun.exists)
        pool.terminate()

    terminated = in_thread(terminate)
    with pytest.raises(TerminatedError):
        pool.apply(note_and_nap, (str(begun), 1, 600))
    terminated()
