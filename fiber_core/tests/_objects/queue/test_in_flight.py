"""What a reader was given and has not settled."""

import pytest

from fiber._objects.queue.in_flight import Book
from fiber.exceptions import WireError


def placed(*numbers):
    return [(number, str(number).encode()) for number in numbers]


def test_deliveries_are_numbered_from_one_on():
    book = Book()

    assert book.deliver(placed(7, 8)) == 1
    assert book.deliver(placed(9)) == 3


def test_what_is_settled_does_not_come_back():
    book = Book()
    book.deliver(placed(7, 8, 9))
    book.settle(2)

    assert book.parked() == 1
    assert book.remains() == placed(9)


def test_old_news_of_settling_changes_nothing():
    book = Book()
    book.deliver(placed(7, 8, 9))
    book.settle(2)
    book.settle(1)

    assert book.settled == 2


def test_settling_more_than_was_given_is_refused():
    book = Book()
    book.deliver(placed(7))

    with pytest.raises(WireError, match="settles 2 items of 1"):
        book.settle(2)


def test_what_is_given_back_comes_in_order_and_the_rest_stays_out():
    book = Book()
    book.deliver(placed(1, 2, 3, 4))
    book.recalled = True

    assert book.give_back(1, 3) == placed(2, 3)
    assert not book.recalled
    assert book.remains() == placed(4)


@pytest.mark.parametrize("after,upto", [(2, 1), (0, 5)])
def test_giving_back_what_was_not_given_is_refused(after, upto):
    book = Book()
    book.deliver(placed(1, 2, 3))

    with pytest.raises(WireError, match="gives back"):
        book.give_back(after, upto)


def test_giving_back_what_was_settled_is_refused():
    book = Book()
    book.deliver(placed(1, 2, 3))
    book.settle(2)

    with pytest.raises(WireError, match="gives back"):
        book.give_back(0, 1)


def test_the_readers_own_notes_decide_what_it_had_not_handed_out():
    book = Book(lambda: (2, 0, 0))
    book.deliver(placed(1, 2, 3))

    assert book.parked() == 1
    assert book.remains() == placed(3)


def test_what_the_reader_noted_to_give_back_remains_although_later_ones_were_handed_out():
    book = Book(lambda: (4, 1, 3))
    book.deliver(placed(1, 2, 3, 4, 5))

    assert book.parked() == 3
    assert book.remains() == placed(2, 3, 5)


def test_notes_beyond_what_was_given_are_not_believed():
    book = Book(lambda: (2**60, 0, 0))
    book.deliver(placed(1))

    assert book.parked() == 0
