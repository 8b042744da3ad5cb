"""Requests that wait in order."""

import pytest

from fiber._objects.sync.wait_queue import Request, WaitQueue
from fiber.exceptions import WireError


def test_the_first_to_come_is_the_first_to_go():
    line, requests = WaitQueue(), [Request("a", 1), Request("b", 1), Request("a", 2)]
    for request in requests:
        line.add(request)

    assert [line.first() for _ in requests] == requests
    assert len(line) == 0


def test_one_is_found_by_party_and_number():
    line, request = WaitQueue(), Request("a", 1)
    line.add(request)
    with pytest.raises(WireError, match="number 1 for two requests"):
        line.add(Request("a", 1))

    assert line.remove("b", 1) is None
    assert line.remove("a", 1) is request
    assert line.remove("a", 1) is None


def test_those_of_a_party_or_all_are_taken_out():
    line = WaitQueue()
    for request in (Request("a", 1), Request("b", 1), Request("a", 2), Request(None, 3)):
        line.add(request)

    assert line.has_others(None)
    assert [request.number for request in line.remove_all("a")] == [1, 2]
    assert [request.process for request in line.clear()] == ["b", None]
    assert not line.has_others(None)
