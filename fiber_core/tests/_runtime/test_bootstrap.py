"""First code of a process: whether it dials its parent at once."""

import os

import pytest

from fiber._agent.instructions import Instructions
from fiber._base import values
from fiber._runtime import bootstrap
from fiber._wire.handshake import Credentials, Hello


class DialledError(Exception):
    pass


@pytest.fixture
def begin(monkeypatch):
    """Starts with work from a parent; returns the work where it begins at once."""

    def dial(*_):
        raise DialledError

    def become(work, link, sentinel, *_):
        os.close(sentinel)
        assert link is None
        return bytes(work)

    monkeypatch.setattr(bootstrap, "dial", dial)
    monkeypatch.setattr(bootstrap, "_become", become)

    def begin(work, **changes):
        parent = None if work is None else values.evolve(Hello.mine("parent"), **changes)
        instructions = Instructions(
            credentials=Credentials.new(),
            urls=("unix:///nowhere",),
            ident="id",
            directory="/nowhere",
            processes=1,
            max_frame=2**20,
            parent=parent,
            work=work,
        )
        return bootstrap.main(instructions.encode(), 0)

    return begin


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watches its parent by its connection")
def test_one_that_got_its_work_begins_without_its_parent(begin):
    assert begin(b"work") == b"work"


@pytest.mark.parametrize(
    "work,changes",
    [
        pytest.param(None, {}, id="its work is to be asked for"),
        # which refuses it, in words of its own
        pytest.param(b"work", {"python": "3.1"}, id="the parent is of another Python"),
        pytest.param(b"work", {"fiber": "0.0"}, id="the parent is of another release"),
        pytest.param(b"work", {"host": "elsewhere"}, id="the parent is on another host"),
    ],
)
def test_others_dial_it_first(begin, work, changes):
    with pytest.raises(DialledError):
        begin(work, **changes)
