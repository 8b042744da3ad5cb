"""A master's mark tells whether it lives."""

import socket

import pytest

from fiber_docker.orphans import is_orphan, master_mark


def test_this_process_lives():
    assert not is_orphan(master_mark())


def test_one_that_is_no_more_left_orphans():
    assert is_orphan(f"{socket.gethostname()}:4194304:1.0")


def test_another_process_of_the_same_number_is_another():
    host, pid, _ = master_mark().split(":")

    assert is_orphan(f"{host}:{pid}:1.0")


@pytest.mark.parametrize("mark", ["", "elsewhere:1:1.0", "a:b", f"{socket.gethostname()}:x:1.0"])
def test_of_what_cannot_be_known_nothing_is_said(mark):
    assert not is_orphan(mark)
