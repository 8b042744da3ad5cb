"""A ring as one of its members sees it."""

import threading

import pytest

from fiber.exceptions import FiberError
from fiber.ring import view
from fiber.ring.model import Member
from fiber.ring.view import RingView, current_ring


def ring(rank=0, size=2):
    members = tuple(
        Member(rank=number, ip="10.0.0.1", port=1, host="a", local_rank=number, local_size=size)
        for number in range(size)
    )
    return RingView(rank=rank, members=members)


def test_it_knows_itself():
    found = ring(1, 3)

    assert (found.rank, found.size, found.me.rank) == (1, 3, 1)
    assert (found.local_rank, found.local_size) == (1, 3)
    assert repr(found) == "<RingView rank 1 of 3, round 1>"


def test_what_was_committed_does_not_change_any_more():
    found, state = ring(), [1]
    assert (found.state, found.step) == (None, 0)

    found.commit(state)
    state.append(2)

    assert (found.state, found.step) == ([1], 1)


def test_steps_count_on_from_those_of_others():
    found, other = ring(), ring(1)
    other.commit("x", step=7)

    found.take(*other.kept())
    found.commit("y")

    assert (found.state, found.step) == ("y", 8)


def test_what_is_to_be_done_at_the_end_is_done_in_the_other_order():
    done, found = [], ring()
    found.on_leave(lambda: done.append(1))
    found.on_leave(lambda: done.append(2))

    found.close()
    found.close()

    assert done == [2, 1]


def test_who_is_in_no_ring_is_told():
    with pytest.raises(FiberError, match="no member of a ring"):
        current_ring()


def test_a_thread_may_be_in_a_ring_of_its_own():
    seen, mine = [], ring()

    def inside():
        view.enter(mine, of_process=False)
        seen.append(current_ring())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()

    assert seen == [mine]
    with pytest.raises(FiberError):
        current_ring()
