"""Processes of a remote job wait until their parent has accepted it."""

import os

import pytest

from fiber._agent.job.server import Gate


def test_whoever_waits_goes_on_when_the_gate_is_opened():
    gate = Gate()
    mine = os.dup(gate.reader)
    gate.open()
    assert os.read(mine, 1) == b"\0"
    os.close(mine)


def test_where_it_is_never_opened_nobody_goes_on():
    gate = Gate()
    assert not gate.wait()


def test_a_gate_may_be_opened_when_all_who_waited_were_killed():
    gate = Gate()
    writer = gate.writer

    gate.open()

    with pytest.raises(OSError):
        os.fstat(writer)
