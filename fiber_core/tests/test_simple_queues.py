"""Simple queues: what was put is with the queue when ``put`` returns."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import fiber
import soak

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]

PATIENCE = 30


def put_and_die(into, count):
    for number in range(count):
        into.put(number)
    os.kill(os.getpid(), signal.SIGKILL)


def put_from_threads_and_die(into, count):
    threads = [threading.Thread(target=into.put, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(3600 if soak.is_full() else 120)
@pytest.mark.parametrize("put", [put_and_die, put_from_threads_and_die])
def test_what_was_put_survives_its_writer(put):
    for current in soak.rounds(put.__name__, 200, least=4):
        results = fiber.SimpleQueue()
        count = current.seed % 4 + 1
        child = fiber.Process(target=put, args=(results, count))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == -signal.SIGKILL

        assert sorted(results.get() for _ in range(count)) == list(range(count))
        assert results.empty()


def test_a_large_value_survives_its_writer():
    results = fiber.SimpleQueue()
    child = fiber.Process(target=put_value_and_die, args=(results, b"x" * 20_000_000))
    child.start()
    child.join(PATIENCE)

    assert len(results.get()) == 20_000_000


def put_value_and_die(into, value):
    into.put(value)
    os.kill(os.getpid(), signal.SIGKILL)
