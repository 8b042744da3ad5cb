"""A descriptor that is readable while something is there."""

import select

import pytest

from fiber._objects.queue.ready_fd import Bell


@pytest.fixture
def bell():
    bell = Bell()
    yield bell
    bell.close()


def readable(bell):
    return bool(select.select([bell.fd], [], [], 0)[0])


def test_it_is_silent_at_first(bell):
    assert not readable(bell)


def test_it_is_readable_for_as_long_as_it_is_set(bell):
    bell.set(True)
    bell.set(True)
    assert readable(bell)
    assert readable(bell)

    bell.set(False)
    assert not readable(bell)


def test_closing_twice_and_setting_afterwards_do_nothing(bell):
    bell.close()
    bell.close()
    bell.set(True)
    assert bell.fd == -1
