"""Threads that wait for a ring's status or end."""

import pickle
import threading

from fiber._ring.controller import Outcome
from fiber._ring.model import Failure, RingPhase, RingStatus

NEW, RUNNING = RingStatus(phase=RingPhase.NEW), RingStatus(phase=RingPhase.RUNNING)


def test_waiting_for_the_end_returns_at_the_end():
    outcome = Outcome(NEW)
    assert not outcome.wait(0)
    thread = threading.Thread(target=lambda: outcome.finish(None, [pickle.dumps(5)]))
    thread.start()

    assert outcome.wait(30)

    thread.join()
    assert outcome.results() == [5]


def test_the_first_word_on_its_end_counts():
    outcome = Outcome(NEW)
    outcome.finish(Failure(reason="OOM"))
    outcome.finish(None)

    assert outcome.failure == Failure(reason="OOM")


def test_waiting_for_a_status_ends_when_it_holds():
    outcome = Outcome(NEW)
    thread = threading.Thread(target=lambda: outcome.update(RUNNING))
    thread.start()

    assert outcome.wait_for(lambda status: status.phase is RingPhase.RUNNING, 30)
    thread.join()


def test_waiting_for_a_status_ends_with_the_ring():
    outcome = Outcome(NEW)
    outcome.finish(None)

    assert not outcome.wait_for(lambda status: status.phase is RingPhase.RUNNING, 30)
