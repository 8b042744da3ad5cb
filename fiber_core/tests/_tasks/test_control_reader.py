"""Somebody looks after a worker's link while a task takes long, and only then."""

import os
import threading

import pytest

from fiber._tasks import worker as module
from fiber._tasks.worker import Attendant


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
def attended():
    return threading.Event()


@pytest.fixture
def lingered():
    return threading.Event()


@pytest.fixture
def attendant(line, seen, attended, lingered):
    def attend(subject):
        os.read(line.fd, 1)
        seen.append(subject)
        attended.set()

    attendant = Attendant(attend, lambda _: lingered.set())
    yield attendant
    attendant.close()


def test_what_comes_while_a_subject_runs_is_attended_to(attendant, line, seen, attended):
    attendant.watch("long", line.fds)
    line.say()
    assert attended.wait(20)
    assert seen == ["long"]


def test_a_subject_that_runs_on_is_told_of(attendant, line, lingered):
    attendant.watch("long", line.fds)
    assert lingered.wait(20)


def test_no_thread_is_started_before_there_is_something_to_watch():
    before = threading.active_count()
    Attendant(print, print).close()
    assert threading.active_count() == before


def test_nothing_is_attended_to_once_the_subject_is_done(attendant, line, seen, lingered):
    attendant.watch("first", line.fds)
    assert lingered.wait(20)
    attendant.rest()
    line.say()
    again = threading.Event()
    attendant._linger = lambda _: again.set()
    attendant.rest()
    assert not again.wait(3 * module.PATIENCE)
    assert seen == []


def test_subjects_may_follow_one_another_at_any_pace(attendant, line, attended, seen):
    for number in range(2000):
        attendant.watch(number, line.fds)
        attendant.rest()
    attendant.watch("last", line.fds)
    line.say()
    assert attended.wait(20)
    assert seen == ["last"]


def test_the_end_of_the_link_is_not_attended_to(attendant, line, seen, lingered):
    os.write(line.end_other, b"x")
    attendant.watch("long", line.fds)
    assert lingered.wait(20)
    assert seen == []


def test_it_ends_in_the_middle_of_a_subject(attendant, line, lingered):
    attendant.watch("long", line.fds)
    assert lingered.wait(20)
    attendant.close()
    assert not attendant._thread.is_alive()
