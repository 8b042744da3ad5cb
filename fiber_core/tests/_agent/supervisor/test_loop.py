"""The event loop of a supervisor."""

import os

import pytest


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        os.close(descriptor)


def test_a_callback_runs_when_there_is_something_to_read(loop, pipe):
    seen = []
    loop.on_readable(pipe[0], lambda: seen.append(os.read(pipe[0], 10)))
    os.write(pipe[1], b"x")

    loop.run_once()

    assert seen == [b"x"]


def test_reading_and_writing_are_watched_apart(loop, pipe):
    seen = []
    loop.on_writable(pipe[1], lambda: seen.append("writable"))
    loop.on_readable(pipe[0], lambda: seen.append("readable"))
    loop.run_once()
    assert seen == ["writable"]

    loop.on_writable(pipe[1], None)
    os.write(pipe[1], b"x")
    loop.run_once()
    assert seen == ["writable", "readable"]


def test_a_callback_may_forget_others_of_the_same_turn(loop, pipe):
    other = os.pipe()
    seen = []
    for number, reader in enumerate((pipe[0], other[0])):
        loop.on_readable(
            reader,
            lambda number=number: (
                seen.append(number),
                loop.forget(pipe[0]),
                loop.forget(other[0]),
            ),
        )
    os.write(pipe[1], b"x")
    os.write(other[1], b"x")

    loop.run_once()

    assert len(seen) == 1
    # one that nobody watches any more is no error
    loop.forget(pipe[0])
    for descriptor in other:
        os.close(descriptor)


def test_files_that_cannot_be_polled_raise_an_error(loop, tmp_path):
    with (tmp_path / "file").open("wb") as file, pytest.raises(PermissionError):
        loop.on_writable(file.fileno(), lambda: None)


def test_timers_run_in_the_order_of_their_time(loop, clock):
    seen = []
    loop.call_later(2.0, lambda: seen.append("late"))
    loop.call_later(1.0, lambda: seen.append("early"))
    loop.call_later(1.0, lambda: seen.append("second"))
    clock.time = 5.0

    loop.run_once()

    assert seen == ["early", "second", "late"]


def test_a_cancelled_timer_never_runs(loop, clock):
    seen = []
    timer = loop.call_later(1.0, lambda: seen.append("never"))
    loop.call_later(2.0, lambda: seen.append("ran"))
    timer.cancel()
    timer.cancel()
    clock.time = 3.0

    loop.run_once()

    assert seen == ["ran"]


def test_a_timer_may_cancel_another_and_set_a_new_one(loop, clock):
    seen = []

    def first():
        second.cancel()
        loop.call_later(0.0, lambda: seen.append("third"))

    loop.call_later(0.0, first)
    second = loop.call_later(0.0, lambda: seen.append("second"))

    loop.run_once()
    assert seen == []
    loop.run_once()
    assert seen == ["third"]


def test_it_waits_no_longer_than_until_the_next_timer(loop, clock):
    loop.call_later(0.0, lambda: None)

    loop.run_once()

    assert loop.now() == 0.0
