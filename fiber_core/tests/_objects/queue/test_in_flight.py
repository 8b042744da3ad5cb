"""Deliveries to a reader that are not settled."""

import pytest

from fiber._objects.queue.in_flight import InFlight
from fiber.exceptions import WireError


def positioned(*numbers):
    return [(number, str(number).encode()) for number in numbers]


def test_deliveries_are_numbered_from_one_on():
    in_flight = InFlight()

    assert in_flight.deliver(positioned(7, 8)) == 1
    assert in_flight.deliver(positioned(9)) == 3


def test_what_is_settled_does_not_come_back():
    in_flight = InFlight()
    in_flight.deliver(positioned(7, 8, 9))
    in_flight.settle(2)

    assert in_flight.prefetched() == 1
    assert in_flight.unconsumed() == positioned(9)


def test_old_news_of_settling_changes_nothing():
    in_flight = InFlight()
    in_flight.deliver(positioned(7, 8, 9))
    in_flight.settle(2)
    in_flight.settle(1)

    assert in_flight.settled == 2


def test_settling_more_than_was_given_is_refused():
    in_flight = InFlight()
    in_flight.deliver(positioned(7))

    with pytest.raises(WireError, match="settles 2 items of 1"):
        in_flight.settle(2)


def test_what_is_given_back_comes_in_order_and_the_rest_stays_out():
    in_flight = InFlight()
    in_flight.deliver(positioned(1, 2, 3, 4))
    in_flight.recalled = True

    assert in_flight.give_back(1, 3) == positioned(2, 3)
    assert not in_flight.recalled
    assert in_flight.unconsumed() == positioned(4)


@pytest.mark.parametrize("after,upto", [(2, 1), (0, 5)])
def test_giving_back_what_was_not_given_is_refused(after, upto):
    in_flight = InFlight()
    in_flight.deliver(positioned(1, 2, 3))

    with pytest.raises(WireError, match="gives back"):
        in_flight.give_back(after, upto)


def test_giving_back_what_was_settled_is_refused():
    in_flight = InFlight()
    in_flight.deliver(positioned(1, 2, 3))
    in_flight.settle(2)

    with pytest.raises(WireError, match="gives back"):
        in_flight.give_back(0, 1)


def test_the_readers_own_notes_decide_what_it_had_not_handed_out():
    in_flight = InFlight(lambda: (2, 0, 0))
    in_flight.deliver(positioned(1, 2, 3))

    assert in_flight.prefetched() == 1
    assert in_flight.unconsumed() == positioned(3)


def test_what_the_reader_noted_to_give_back_remains_although_later_ones_were_handed_out():
    in_flight = InFlight(lambda: (4, 1, 3))
    in_flight.deliver(positioned(1, 2, 3, 4, 5))

    assert in_flight.prefetched() == 3
    assert in_flight.unconsumed() == positioned(2, 3, 5)


def test_notes_beyond_what_was_given_are_not_believed():
    in_flight = InFlight(lambda: (2**60, 0, 0))
    in_flight.deliver(positioned(1))

    assert in_flight.prefetched() == 0
