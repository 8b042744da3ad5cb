"""The control reader reads a worker's link while a task takes long, and only then."""

import os
import threading

import pytest

from fiber._tasks.worker import ControlReader
from waiting import until

INTERVAL = 0.02


class Watched:
    """A link's descriptors, the reader that watches them, and what it noticed."""

    def __init__(self):
        self.fds = os.pipe()
        self.seen = []
        self.noticed, self.ticked = threading.Event(), threading.Event()
        self.reader = ControlReader(self._on_message, lambda _: self.ticked.set(), INTERVAL)

    def _on_message(self, subject):
        os.read(self.fds[0], 1)
        self.seen.append(subject)
        self.noticed.set()

    def begin(self, subject):
        self.reader.watch(subject, self.fds[:1])

    def send(self):
        os.write(self.fds[1], b"x")


@pytest.fixture
def watched():
    watched = Watched()
    yield watched
    watched.reader.close()
    for fd in watched.fds:
        os.close(fd)


def test_what_comes_while_a_subject_runs_is_attended_to_and_the_interval_reported(watched):
    watched.begin("long")
    watched.send()
    assert watched.noticed.wait(20)
    assert watched.seen == ["long"]
    assert watched.ticked.wait(20)


def test_nothing_is_attended_to_once_the_subject_is_done(watched):
    watched.begin("first")
    assert watched.ticked.wait(20)
    watched.reader.rest()
    watched.send()
    until(lambda: watched.reader._idle)
    assert watched.seen == []


def test_subjects_may_follow_one_another_at_any_pace(watched):
    for number in range(2000):
        watched.begin(number)
        watched.reader.rest()
    watched.begin("last")
    watched.send()
    assert watched.noticed.wait(20)
    assert watched.seen == ["last"]


def test_it_ends_in_the_middle_of_a_subject(watched):
    watched.begin("long")
    assert watched.ticked.wait(20)
    watched.reader.close()
    assert not watched.reader._thread.is_alive()
