"""A process id is written down with the time at which its process began."""

import os

from fiber.launch.pids import is_same, start_time


def test_this_process_is_itself():
    assert start_time(os.getpid()) is not None
    assert is_same(os.getpid(), start_time(os.getpid()))


def test_the_same_number_begun_at_another_time_is_somebody_else():
    assert not is_same(os.getpid(), start_time(os.getpid()) + 1)


def test_a_process_that_has_ended_is_nobody():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    # a zombie: it has ended, and nobody has waited for it
    assert start_time(pid) is None
    os.waitpid(pid, 0)
    assert start_time(pid) is None
    assert not is_same(pid, None)


def test_numbers_that_mean_groups_are_nobody():
    assert not is_same(0, 1.0)
    assert not is_same(-1, 1.0)
