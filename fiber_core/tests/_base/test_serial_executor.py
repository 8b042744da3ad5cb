"""A thread that does one thing after another."""

import logging
import threading

import pytest

from fiber._base.serial_executor import SerialExecutor
from fiber.exceptions import PeerLostError


@pytest.fixture
def courier():
    courier = SerialExecutor("test-courier", expected=PeerLostError)
    yield courier
    courier.close()


def test_actions_are_done_in_order_on_another_thread(courier):
    done = []
    for number in range(5):
        courier.submit(lambda n=number: done.append((n, threading.current_thread().name)))

    assert courier.drain(10)
    assert done == [(n, "test-courier") for n in range(5)]


def test_one_that_fails_is_logged_and_the_next_is_done(courier, caplog):
    done = []
    courier.submit(lambda: 1 / 0)
    courier.submit(lambda: done.append(True))

    assert courier.drain(10)
    assert done == [True]
    assert "ZeroDivisionError" in caplog.text


def test_the_loss_of_the_process_it_talks_to_is_no_failure(courier, caplog):
    def lose():
        raise PeerLostError("gone")

    with caplog.at_level(logging.INFO, logger="fiber"):
        courier.submit(lose)
        assert courier.drain(10)
    assert not caplog.records


def test_closing_does_what_was_submitted_and_nothing_afterwards(courier):
    done = []
    courier.submit(lambda: done.append(1))
    courier.close()
    courier.submit(lambda: done.append(2))

    assert courier.drain(0)
    assert done == [1]


def test_it_may_close_itself(courier):
    courier.submit(courier.close)
    courier.close()


def test_a_wait_for_what_takes_too_long_ends(courier):
    gate = threading.Event()
    courier.submit(gate.wait)

    assert not courier.drain(0.01)
    gate.set()
