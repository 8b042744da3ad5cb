from __future__ import annotations

import resource

import pytest

from fiber.transport import descriptors


@pytest.fixture
def limits(monkeypatch):
    """The soft and hard limit as a list, which stands for this process's own."""
    found = [1024, 20_000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: found.__setitem__(slice(2), both))
    return found


def test_a_program_with_few_connections_keeps_its_limit(limits):
    descriptors.make_room(511)
    assert limits == [1024, 20_000]


def test_the_limit_grows_with_the_connections_up_to_the_hard_one(limits):
    descriptors.make_room(512)
    assert limits == [4096, 20_000]
    descriptors.make_room(2048)
    descriptors.make_room(8192)
    assert limits == [20_000, 20_000]
    descriptors.make_room(20_000)
    assert limits == [20_000, 20_000]


def test_where_there_is_no_hard_limit_the_soft_one_still_grows_bit_by_bit(limits):
    limits[1] = resource.RLIM_INFINITY
    descriptors.make_room(600)
    assert limits == [4096, resource.RLIM_INFINITY]
    limits[0] = resource.RLIM_INFINITY
    descriptors.make_room(10**6)
    assert limits == [resource.RLIM_INFINITY, resource.RLIM_INFINITY]


def test_what_the_system_refuses_is_left_as_it_is(limits, monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    descriptors.make_room(600)
    assert limits == [1024, 20_000]
