"""Descriptors that are owned together are closed together."""

import os

import pytest

from fiber._agent.supervisor.descriptors import Descriptors


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_all_that_are_owned_are_closed_and_no_others():
    owned = Descriptors()
    stranger = os.open(os.devnull, os.O_RDONLY)
    pairs = [owned.pipe() for _ in range(3)]
    kept = owned.release(owned.own(os.open(os.devnull, os.O_RDONLY)))

    owned.close_all()

    assert not any(is_open(descriptor) for pair in pairs for descriptor in pair)
    assert is_open(stranger)
    assert is_open(kept)
    assert len(owned) == 0
    os.close(stranger)
    os.close(kept)


def test_one_is_closed_once():
    owned = Descriptors()
    reader, writer = owned.pipe()
    owned.close(reader)
    other = os.dup(writer)

    owned.close(reader)

    assert is_open(other)
    owned.close(writer)
    os.close(other)


def test_pipes_are_closed_on_exec():
    owned = Descriptors()
    reader, writer = owned.pipe()

    assert not os.get_inheritable(reader)
    assert not os.get_inheritable(writer)
    owned.close_all()


def test_one_that_is_closed_already_harms_nothing():
    owned = Descriptors()
    reader, writer = owned.pipe()
    os.close(reader)

    owned.close_all()

    with pytest.raises(OSError, match="Bad file"):
        os.fstat(writer)
