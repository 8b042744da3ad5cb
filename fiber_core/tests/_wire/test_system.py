"""What the wire takes from the system: descriptors."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import sys
import warnings

import pytest

from fiber._base import values
from fiber._wire import descriptors


@pytest.mark.parametrize(
    "soft, hard, connections, raised",
    [
        (1024, 20_000, 511, 1024),
        (1024, 20_000, 512, 4096),
        (16_384, 20_000, 8192, 20_000),
        (20_000, 20_000, 20_000, 20_000),
        (1024, resource.RLIM_INFINITY, 600, 4096),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10**6, resource.RLIM_INFINITY),
    ],
)
def test_the_limit_grows_with_many_connections_up_to_the_hard_one(
    limits, soft, hard, connections, raised
):
    limits[:] = soft, hard
    descriptors.raise_limit_for(connections)
    assert limits == [raised, hard]


def test_what_the_system_refuses_is_left_as_it_is(limits, monkeypatch):
    def refuse(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    descriptors.raise_limit_for(600)
    assert limits == [1024, 20_000]


class TestConnections:
    """Accepted connections that another owner in this process has."""

    @pytest.fixture
    def connections(self):
        with contextlib.closing(descriptors.AcceptedConnections()) as found:
            yield found

    @pytest.fixture(params=["127.0.0.1", "::1"])
    def pair(self, request, connections):
        """Both ends of a connection, and the finder."""
        family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
        with socket.socket(family) as probe:
            try:
                probe.bind((request.param, 0))
            except OSError:
                pytest.skip(f"this host has no {request.param}")
        with (
            socket.create_server((request.param, 0), family=family) as listener,
            socket.create_connection(listener.getsockname()[:2], timeout=20) as near,
            listener.accept()[0] as far,
        ):
            name = socket.inet_pton(family, request.param), listener.getsockname()[1]
            (found,) = connections.accepted([name])
            assert found.descriptor == far.fileno()
            assert found.peer[1] == near.getsockname()[1]
            yield near, far, found

    def test_a_silent_connection_is_recognized(self, connections, pair):
        near, far, found = pair
        linux = sys.platform == "linux"
        assert connections.is_silent(found) is linux
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        assert not connections.is_silent(found)

    def test_another_one_with_the_same_descriptor_is_left_alone(self, connections, pair):
        near, far, found = pair
        connections.end(values.evolve(found, peer=(found.peer[0], 1)))
        connections.end(values.evolve(found, descriptor=10**6))
        far.sendall(b"x")
        assert near.recv(1) == b"x"

    def test_they_are_found_and_ended_where_no_descriptor_is_left(self, connections, pair):
        near, far, found = pair
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (far.fileno() + 1, hard))
        filled = []
        try:
            with pytest.raises(OSError) as raised:
                while True:
                    filled.append(os.dup(0))
            assert raised.value.errno == errno.EMFILE
            assert list(connections.accepted([found.local])) == [found]
            connections.end(found)
        finally:
            for number in filled:
                os.close(number)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert near.recv(1) == b""

    @pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
    def test_those_of_another_listener_at_the_same_port_are_not_found(self, connections, pair):
        _, _, found = pair
        with (
            socket.create_server(("127.0.0.2", found.local[1])) as listener,
            socket.create_connection(listener.getsockname(), timeout=20),
            listener.accept()[0],
        ):
            assert list(connections.accepted([found.local])) == [found]
            anywhere = bytes(4), found.local[1]
            assert len(list(connections.accepted([anywhere]))) == 2


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


class TestOwnedSocket:
    def test_it_is_closed_without_a_warning_when_it_is_collected(self):
        owned = descriptors.OwnedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        held = owned._owned
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            del owned
        assert given == []
        assert not held.are_intact

    @pytest.mark.parametrize("has_cookie", [True, False])
    def test_it_knows_when_another_file_or_socket_has_its_number(self, pipe, has_cookie):
        owned = descriptors.OwnedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        if not has_cookie:
            owned._cookie = b""
        number, mine = owned.fileno(), os.dup(owned.fileno())
        other = socket.socket(socket.AF_UNIX)
        for taken_by in (pipe[0], other.fileno()):
            assert owned.are_intact
            os.dup2(taken_by, number)
            assert not owned.are_intact
            os.dup2(mine, number)
        os.close(number)
        assert not owned.are_intact
        os.close(mine)
        other.close()

    def test_a_file_that_has_its_number_by_then_stays_open(self, pipe):
        owned = descriptors.OwnedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        number = owned.fileno()
        os.dup2(pipe[0], number)
        del owned
        os.close(number)


def test_all_descriptors_of_this_process_are_found_and_no_other(pipe):
    found = descriptors.open_descriptors()
    assert set(pipe) <= found
    for number in found:
        os.fstat(number)


class TestWaiting:
    def test_also_where_no_file_may_be_opened_any_more(self, pipe):
        poll = select.poll()
        poll.register(pipe[0], select.POLLIN)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                poll.poll(0)
            assert not descriptors.await_readable(poll, pipe[:1], 0.001)
            os.write(pipe[1], b"x")
            assert descriptors.await_readable(poll, pipe[:1], None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_a_closed_one_is_waited_for_no_longer(self):
        reader, writer = os.pipe()
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        os.close(reader)
        os.close(writer)
        assert descriptors.await_readable(poll, [reader], None)
