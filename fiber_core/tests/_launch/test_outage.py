"""How long a platform that cannot be asked is waited for, decided without a clock."""

import pytest

from fiber._launch.outage import PATIENCE, PAUSES, SAID_AFTER, Outage
from fiber.exceptions import BackendUnavailableError

ERROR = BackendUnavailableError("the engine does not answer")


@pytest.fixture
def outage():
    return Outage()


def test_a_platform_that_answers_is_away_for_no_time(outage):
    assert outage.error is None
    assert not outage.is_over
    assert outage.lasted == 0
    assert outage.due is outage.next(1e9) is None


def test_the_pauses_between_attempts_grow_to_a_bound(outage):
    pauses = []
    for _ in range(len(PAUSES) + 2):
        outage.failed(ERROR, 0.0, 10.0)
        pauses.append(outage.retry_at - 10.0)
    assert pauses == pytest.approx([*PAUSES, PAUSES[-1], PAUSES[-1]])


def test_it_is_over_when_the_platform_was_asked_for_long_enough(outage):
    outage.failed(ERROR, 0.0, 0.0)
    outage.failed(ERROR, 10.0, PATIENCE - 0.1)
    assert not outage.is_over
    outage.failed(ERROR, PATIENCE, PATIENCE)
    assert outage.is_over
    assert outage.lasted == PATIENCE


def test_an_attempt_that_waited_by_itself_has_used_up_as_much(outage):
    outage.failed(ERROR, 0.0, PATIENCE)
    assert outage.is_over


def test_people_are_told_once_and_not_of_a_short_one(outage):
    outage.failed(ERROR, 0.0, 1.0)
    assert outage.next(SAID_AFTER - 0.1) is None
    outage.failed(ERROR, 2.0, SAID_AFTER)
    assert outage.due == SAID_AFTER
    assert outage.next(SAID_AFTER) == (
        "the platform cannot be asked, and is asked again for 60 s in all: the engine does not answer"
    )
    outage.failed(ERROR, 7.0, 8.0)
    assert outage.due is outage.next(100.0) is None


def test_each_outage_is_one_of_its_own(outage):
    outage.failed(ERROR, 0.0, PATIENCE)
    outage.next(PATIENCE)
    outage.ended()
    assert not outage.is_over
    outage.failed(ERROR, 100.0, 100.0)
    assert not outage.is_over
    assert outage.due == 100.0 + SAID_AFTER
    assert outage.retry_at == 100.0 + PAUSES[0]
