"""A descriptor that is readable while something is there."""

import select

import pytest

from fiber._objects.queue.ready_fd import ReadyFd


@pytest.fixture
def ready_fd():
    ready_fd = ReadyFd()
    yield ready_fd
    ready_fd.close()


def readable(ready_fd):
    return bool(select.select([ready_fd.fd], [], [], 0)[0])


def test_it_is_silent_at_first(ready_fd):
    assert not readable(ready_fd)


def test_it_is_readable_for_as_long_as_it_is_set(ready_fd):
    ready_fd.set(True)
    ready_fd.set(True)
    assert readable(ready_fd)
    assert readable(ready_fd)

    ready_fd.set(False)
    assert not readable(ready_fd)


def test_closing_twice_and_setting_afterwards_do_nothing(ready_fd):
    ready_fd.close()
    ready_fd.close()
    ready_fd.set(True)
    assert ready_fd.fd == -1
