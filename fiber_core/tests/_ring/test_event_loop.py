"""The thread of a ring: descriptors, what was posted, and time."""

import os
import threading
import time

import pytest

from fiber._ring.controller import Loop


@pytest.fixture
def loop():
    found = Loop()
    yield found
    found.close()


def test_what_is_posted_from_any_thread_is_called(loop):
    seen = []
    thread = threading.Thread(target=lambda: loop.post(lambda: (seen.append(1), loop.stop())))
    thread.start()

    loop.run(lambda: None)

    thread.join()
    assert seen == [1]


def test_a_descriptor_is_read_until_it_is_not_watched(loop):
    reading, writing = os.pipe()
    os.write(writing, b"xy")
    seen = []

    def read():
        seen.append(os.read(reading, 1))
        if len(seen) == 2:
            loop.unwatch(reading)
            loop.unwatch(reading)
            loop.stop()

    loop.watch(reading, read)
    loop.run(lambda: None)

    assert seen == [b"x", b"y"]
    os.close(reading)
    os.close(writing)


def test_its_turn_comes_when_it_asked_for_it(loop):
    turns = []

    def turn():
        turns.append(time.monotonic())
        if len(turns) == 3:
            loop.stop()
        return time.monotonic() + 0.01

    loop.run(turn)

    assert len(turns) == 3


def test_what_is_posted_to_one_that_is_closed_harms_nobody(loop):
    loop.close()
    loop.post(lambda: pytest.fail("nobody is there to call it"))
    loop.close()
