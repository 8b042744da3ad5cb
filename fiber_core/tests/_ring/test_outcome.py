"""What those who wait for a ring are told."""

import pickle
import threading

from fiber._ring.controller import Outcome
from fiber._ring.model import Failure, RingPhase, RingStatus

NEW, RUNNING = RingStatus(phase=RingPhase.NEW), RingStatus(phase=RingPhase.RUNNING)


def test_who_waits_for_the_end_is_told_of_it():
    outcome = Outcome(NEW)
    assert not outcome.wait(0)
    thread = threading.Thread(target=lambda: outcome.over(None, [pickle.dumps(5)]))
    thread.start()

    assert outcome.wait(30)

    thread.join()
    assert outcome.results() == [5]


def test_the_first_word_on_its_end_counts():
    outcome = Outcome(NEW)
    outcome.over(Failure(reason="OOM"))
    outcome.over(None)

    assert outcome.failure == Failure(reason="OOM")


def test_who_waits_for_a_status_is_told_when_it_is_so():
    outcome = Outcome(NEW)
    thread = threading.Thread(target=lambda: outcome.told(RUNNING))
    thread.start()

    assert outcome.wait_for(lambda status: status.phase is RingPhase.RUNNING, 30)
    thread.join()


def test_nobody_waits_for_a_status_of_what_is_over():
    outcome = Outcome(NEW)
    outcome.over(None)

    assert not outcome.wait_for(lambda status: status.phase is RingPhase.RUNNING, 30)
