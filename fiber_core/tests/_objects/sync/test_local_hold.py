"""Permits of a lock that the threads of one process hold."""

import pytest

from fiber._objects.sync.semaphore import LocalHold
from fiber._objects.sync.wait_queue import Status
from fiber.exceptions import HolderDiedError, HolderDiedWarning
from objects_world import in_thread


def test_it_is_the_threads_that_took_it_last():
    local = LocalHold("lock", recursive=False)
    assert not local.is_held_by_thread
    local.held = 1
    in_thread(local.set_thread)()
    assert (local.is_held_by_thread, local.count) == (False, 1)
    local.set_thread()
    assert (local.is_held_by_thread, local.count) == (True, 1)
    local.held = 0

    assert not local.is_held_by_thread


def test_a_recursive_one_is_left_as_often_as_it_was_taken():
    local = LocalHold("lock", recursive=True)
    assert not local.try_reenter()
    local.held = 1
    local.set_thread()
    assert local.try_reenter()
    assert not local.count_release()
    with pytest.raises(AssertionError, match="not owned by thread"):
        in_thread(local.count_release)()

    assert local.count_release()


@pytest.mark.parametrize("recursive", [True, False])
def test_what_another_thread_was_given_is_not_taken_for_what_this_one_had(recursive):
    local = LocalHold("lock", recursive=recursive)
    local.held = 1
    local.set_thread()
    assert local.count_release()
    # another thread waited, and has not run yet
    local.held = 1

    assert not local.is_held_by_thread
    assert not local.try_reenter()


def test_another_kind_is_not_taken_again():
    local = LocalHold("lock", recursive=False)
    local.held = 1
    local.set_thread()

    assert not local.try_reenter()


def test_it_is_left_altogether():
    local = LocalHold("lock", recursive=True)
    local.held = 1
    local.set_thread()
    local.try_reenter()
    depth = local.save_depth()

    assert depth == 2
    assert local.count_release()


def test_the_users_line_is_named():
    local = LocalHold("lock", recursive=False)
    with pytest.warns(HolderDiedWarning, match="process 7 died while it held this lock") as caught:
        local.warn(Status.OK_HOLDER_DIED, "process 7")
    assert caught[0].filename == __file__
    with pytest.raises(HolderDiedError, match="process 7 died"):
        local.warn(Status.REFUSED_HOLDER_DIED, "process 7")
