"""The event loop: descriptors, posted callbacks and deadlines."""

import os
import threading
import time

import pytest

from fiber._ring.controller import EventLoop


@pytest.fixture
def loop():
    found = EventLoop()
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


def test_a_callback_posted_to_a_closed_loop_is_ignored(loop):
    loop.close()
    loop.post(lambda: pytest.fail("nobody is there to call it"))
    loop.close()
