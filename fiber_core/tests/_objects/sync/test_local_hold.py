"""What the threads of a process have of a lock."""

import pytest

from fiber._objects.sync.permits import Holding
from fiber._objects.sync.wait_queue import Verdict
from fiber.exceptions import HolderDiedError, HolderDiedWarning
from objects_world import in_thread


def test_it_is_the_threads_that_took_it_last():
    mine = Holding("lock", recursive=False)
    assert not mine.is_mine
    mine.held = 1
    in_thread(mine.mark)()
    assert (mine.is_mine, mine.count) == (False, 1)
    mine.mark()
    assert (mine.is_mine, mine.count) == (True, 1)
    mine.held = 0

    assert not mine.is_mine


def test_a_recursive_one_is_left_as_often_as_it_was_taken():
    mine = Holding("lock", recursive=True)
    assert not mine.enter_again()
    mine.held = 1
    mine.mark()
    assert mine.enter_again()
    assert not mine.leave_once()
    with pytest.raises(AssertionError, match="not owned by thread"):
        in_thread(mine.leave_once)()

    assert mine.leave_once()


@pytest.mark.parametrize("recursive", [True, False])
def test_what_another_thread_was_given_is_not_taken_for_what_this_one_had(recursive):
    mine = Holding("lock", recursive=recursive)
    mine.held = 1
    mine.mark()
    assert mine.leave_once()
    # another thread waited, and has not run yet
    mine.held = 1

    assert not mine.is_mine
    assert not mine.enter_again()


def test_another_kind_is_not_taken_again():
    mine = Holding("lock", recursive=False)
    mine.held = 1
    mine.mark()

    assert not mine.enter_again()


def test_it_is_left_altogether():
    mine = Holding("lock", recursive=True)
    mine.held = 1
    mine.mark()
    mine.enter_again()
    depth = mine.leave_fully()

    assert depth == 2
    assert mine.leave_once()


def test_the_users_line_is_named():
    mine = Holding("lock", recursive=False)
    with pytest.warns(HolderDiedWarning, match="process 7 died while it held this lock") as caught:
        mine.warn(Verdict.INHERITED, "process 7")
    assert caught[0].filename == __file__
    with pytest.raises(HolderDiedError, match="process 7 died"):
        mine.warn(Verdict.DIED, "process 7")
