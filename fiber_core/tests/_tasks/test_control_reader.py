"""The control reader reads a worker's link while a task takes long, and only then."""

import os
import threading

import pytest

from fiber._tasks.worker import ControlReader

INTERVAL = 0.02


class Line:
    def __init__(self):
        self.fd, self.other = os.pipe()
        self.end, self.end_other = os.pipe()

    @property
    def fds(self):
        return self.fd, self.end

    def say(self):
        os.write(self.other, b"x")

    def close(self):
        for fd in (self.fd, self.other, self.end, self.end_other):
            os.close(fd)


@pytest.fixture
def line():
    line = Line()
    yield line
    line.close()


@pytest.fixture
def seen():
    return []


@pytest.fixture
def noticed():
    return threading.Event()


@pytest.fixture
def ticked():
    return threading.Event()


@pytest.fixture
def reader(line, seen, noticed, ticked):
    def on_message(subject):
        os.read(line.fd, 1)
        seen.append(subject)
        noticed.set()

    reader = ControlReader(on_message, lambda _: ticked.set(), INTERVAL)
    yield reader
    reader.close()


def test_what_comes_while_a_subject_runs_is_attended_to(reader, line, seen, noticed):
    reader.watch("long", line.fds)
    line.say()
    assert noticed.wait(20)
    assert seen == ["long"]


def test_the_interval_callback_comes_while_a_subject_runs(reader, line, ticked):
    reader.watch("long", line.fds)
    assert ticked.wait(20)


def test_no_thread_is_started_before_there_is_something_to_watch():
    before = threading.active_count()
    ControlReader(print, print, INTERVAL).close()
    assert threading.active_count() == before


def test_nothing_is_attended_to_once_the_subject_is_done(reader, line, seen, ticked):
    reader.watch("first", line.fds)
    assert ticked.wait(20)
    reader.rest()
    line.say()
    again = threading.Event()
    reader._on_interval = lambda _: again.set()
    reader.rest()
    assert not again.wait(3 * INTERVAL)
    assert seen == []


def test_subjects_may_follow_one_another_at_any_pace(reader, line, noticed, seen):
    for number in range(2000):
        reader.watch(number, line.fds)
        reader.rest()
    reader.watch("last", line.fds)
    line.say()
    assert noticed.wait(20)
    assert seen == ["last"]


def test_the_end_of_the_link_is_not_attended_to(reader, line, seen, ticked):
    os.write(line.end_other, b"x")
    reader.watch("long", line.fds)
    assert ticked.wait(20)
    assert seen == []


def test_it_ends_in_the_middle_of_a_subject(reader, line, ticked):
    reader.watch("long", line.fds)
    assert ticked.wait(20)
    reader.close()
    assert not reader._thread.is_alive()
