"""Processes are forked, or nothing is left of the attempt."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from fiber._agent.supervisor.child import InChild, forks_entries, spawn
from fiber._agent.supervisor.descriptors import Descriptors

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def opened():
    return sorted(int(link.name) for link in Path("/proc/self/fd").iterdir())


@linux
@pytest.mark.parametrize("refused", ["fork", "pipe"])
def test_what_cannot_be_forked_leaves_no_descriptor(refused, monkeypatch):
    before = opened()
    owned = Descriptors()

    def refuse():
        raise OSError(errno.EAGAIN, "no room for it")

    monkeypatch.setattr(os, refused, refuse)
    with pytest.raises(OSError, match="no room for it"):
        spawn(lambda **_: None, owned, channel=True)

    assert len(owned) == 0
    assert opened() == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


@pytest.mark.parametrize("channel", [True, False])
def test_a_child_has_its_ends_and_no_others(channel):
    owned = Descriptors()
    given = {}

    def plan(**descriptors):
        given.update(descriptors)
        return type("Plan", (), {"job_id": "a"})

    try:
        spawned = spawn(plan, owned, channel=channel)
    except InChild:
        # the supervisor's ends are the first descriptors that it gets to own
        os.write(given["stdout"], b"x")
        os._exit(7)

    assert os.waitpid(spawned.pid, 0)[1] == 7 << 8
    assert os.read(spawned.stdout, 10) == b"x"
    assert os.read(spawned.stdout, 10) == b""
    assert os.read(spawned.report, 10) == b""
    assert (spawned.channel is None) == (not channel)
    assert len(owned) == (4 if channel else 3)
    owned.close_all()


def test_entries_are_forked_where_that_is_safe():
    assert forks_entries() == (sys.platform != "darwin")
