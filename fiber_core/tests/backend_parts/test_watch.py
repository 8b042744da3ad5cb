"""Threads that follow a platform's changes: whatever ends a stream, it is opened again until the end."""

import contextlib
import queue
import threading

import pytest

from fiber.backend_parts.watch import RunWatch, Watches
from fiber.exceptions import BackendError, BackendUnavailableError

AWAY = BackendUnavailableError("nobody answers")


class Stream(RunWatch):
    """Each attempt to follow does what is in the script: raises an error, or delivers words until it is cut."""

    def __init__(self, script, heard):
        super().__init__("fiber-test-watch", "the platform", 30.0)
        self.script, self.heard = script, heard
        self.words = queue.SimpleQueue()

    def follow(self):
        step = self.script.get()
        if isinstance(step, Exception):
            raise step
        self.set_ready()
        self.words.put(step)
        while (word := self.words.get()) is not None:
            self.heard.put(word)

    def cut(self):
        # one that is not open yet ends at once too
        self.script.put("late")
        self.words.put(None)

    def pause(self, error):
        self.heard.put(error)
        return 0.0


@pytest.fixture
def script():
    return queue.SimpleQueue()


@pytest.fixture
def heard():
    """Words of streams, and why each ended."""
    return queue.SimpleQueue()


@pytest.fixture
def watches(script, heard):
    with contextlib.closing(Watches(lambda _: Stream(script, heard))) as watches:
        yield watches


def test_an_outage_is_logged_once_and_what_cannot_be_read_each_time_and_the_stream_goes_on(
    watches, script, heard, caplog
):
    script.put("first")
    watches.wait_ready("run")
    confused = ValueError("nonsense")
    for step in (AWAY, AWAY, confused, "second"):
        script.put(step)
    assert heard.get(timeout=30) == "first"
    # the next words are of a stream that is there already
    watches._by_run["run"].words.put(None)
    assert [heard.get(timeout=30) for _ in range(5)] == [None, AWAY, AWAY, confused, "second"]
    assert [record.getMessage() for record in caplog.records] == [
        "fiber: jobs are out of sight until the platform is back: nobody answers",
        "fiber: a change of a job on the platform could not be read",
    ]


def test_a_first_attempt_that_fails_is_its_callers_error_and_the_next_call_makes_another(
    watches, script
):
    refused = BackendError("no right to list")
    script.put(refused)
    for _ in range(2):
        with pytest.raises(BackendError) as caught:
            watches.wait_ready("run")
        assert caught.value is refused
        script.put(refused)
    script.get(timeout=30)
    script.put("there")
    watches.wait_ready("run")


def test_a_first_attempt_that_may_pass_is_made_again(watches, script, monkeypatch):
    monkeypatch.setattr(Stream, "may_pass", lambda _, error: error is AWAY)
    for step in (AWAY, AWAY, "there"):
        script.put(step)
    watches.wait_ready("run")


def test_once_they_are_closed_no_thread_is_left_and_none_is_waited_for(watches, script):
    script.put("there")
    watches.wait_ready("run")
    watches.close()
    assert "fiber-test-watch" not in {thread.name for thread in threading.enumerate()}
    watches.wait_ready("another run")
