"""Pace of questions, by a clock that tests set; and the thread that keeps it."""

import itertools
import threading

from fiber.backend_parts.batch.poller import BatchTiming, Pace, Poller
from fiber.exceptions import BackendUnavailableError

TIMING = BatchTiming(ask=1.0, ask_idle=3.0, look=0.1, look_idle=0.5, expected=10.0)


def questions(pace, begin, end):
    """When the platform is asked in a span of time."""
    asked, now = [], begin
    while (at := max(now, pace.next_ask(now))) < end:
        asked.append(at)
        pace.asked(at)
        now = at
    return asked


class TestPace:
    def test_the_first_question_waits_for_nothing(self):
        pace = Pace(TIMING)

        assert pace.next_ask(5.0) <= 5.0
        assert pace.next_look(5.0) <= 5.0

    def test_at_most_one_question_a_second_however_much_is_expected(self):
        pace = Pace(TIMING)
        asked = []
        for tenth in range(100):
            now = tenth / 10
            pace.expect(now)
            if now >= pace.next_ask(now):
                pace.asked(now)
                asked.append(now)

        assert len(asked) == 10
        assert all(later - sooner >= 0.99 for sooner, later in itertools.pairwise(asked))

    def test_where_nothing_is_expected_it_slows_down_and_quickens_at_once(self):
        pace = Pace(TIMING)
        pace.expect(0.0)

        assert len(questions(pace, 0.0, 10.0)) == 10
        assert len(questions(pace, 12.0, 72.0)) == 20

        pace.expect(72.0)
        assert pace.next_ask(72.0) <= 73.0
        pace.asked(73.0)
        pace.calm()
        assert pace.next_ask(73.0) == 76.0

    def test_looks_are_more_frequent_than_questions(self):
        pace = Pace(TIMING)
        pace.expect(0.0)
        pace.looked(1.0)
        assert pace.next_look(1.0) == 1.1
        pace.looked(20.0)
        assert pace.next_look(20.0) == 20.5


class TestPoller:
    def test_a_platform_that_cannot_be_asked_is_asked_again(self):
        answered = threading.Event()
        answers = [False, False, True]

        def ask():
            if not answers.pop(0):
                msg = "away"
                raise BackendUnavailableError(msg)
            answered.set()
            answers.append(True)

        poller = Poller("fake", ask, lambda: None, BatchTiming.at(0.01))
        poller.expect()
        try:
            assert answered.wait(30)
        finally:
            poller.close()
        assert answers
