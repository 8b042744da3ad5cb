"""Processes of a remote job wait until their parent has accepted it."""

import os

import pytest

from fiber._agent.job.server import StartBarrier


def test_waiting_processes_go_on_when_the_barrier_is_opened():
    barrier = StartBarrier()
    mine = os.dup(barrier.reader)
    barrier.open()
    assert os.read(mine, 1) == b"\0"
    os.close(mine)


def test_a_barrier_that_is_never_opened_returns_false():
    barrier = StartBarrier()
    assert not barrier.wait()


def test_a_barrier_may_be_opened_when_all_waiting_processes_were_killed():
    barrier = StartBarrier()
    writer = barrier.writer

    barrier.open()

    with pytest.raises(OSError):
        os.fstat(writer)
