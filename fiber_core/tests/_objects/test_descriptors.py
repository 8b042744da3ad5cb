"""Sockets of the program as arguments, results and items: for processes of this host, refused for others."""

import contextlib
import copy
import gc
import os
import pickle
import socket
from pathlib import Path

import pytest

import fiber
from children import PATIENCE, finish
from fiber._objects.pipe import packets
from fiber._objects.store import Store
from wire_world import until

pytestmark = [
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(300),
    pytest.mark.one_host("descriptors stay on a host"),
]


@pytest.fixture
def pair():
    """Two connected sockets."""
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(PATIENCE)
        yield here, there


def open_sockets(_=None):
    """Descriptors of sockets in this process."""
    gc.collect()
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(path.readlink()).startswith("socket:")
    return found


def serve(listener):
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"from %d" % os.getpid())


def answer(sock):
    sock.sendall(sock.recv(100) + b" back")
    return sock, sock.gettimeout()


def test_a_process_serves_the_listener_that_it_was_given_while_the_program_closes_its_own():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        child = fiber.Process(target=serve, args=(listener,))
        child.start()
    with socket.create_connection(address, PATIENCE) as client:
        assert client.recv(100) == b"from %d" % child.pid
        finish(child)
        assert client.recv(100) == b""


@pytest.mark.parametrize("kind", [fiber.Queue, fiber.SimpleQueue])
def test_one_that_goes_through_a_queue_and_back_is_the_same_connection(pair, kind):
    here, there = pair
    there.settimeout(PATIENCE)
    to, back = kind(), kind()
    child = fiber.Process(target=lambda: back.put(answer(to.get())))
    child.start()
    to.put(there)
    here.sendall(b"there and")
    found, timeout = back.get(timeout=PATIENCE) if kind is fiber.Queue else back.get()
    assert (here.recv(100), timeout) == (b"there and back", PATIENCE)
    finish(child)
    there.close()
    with found:
        found.sendall(b"again")
        assert here.recv(100) == b"again"
    assert here.recv(100) == b""


def test_it_stays_one_in_a_pickle_and_no_descriptor_is_left(pair):
    here, there = pair
    with fiber.Pool(1) as pool:
        first = None
        for _ in range(5):
            here.sendall(b"x")
            found, _ = pool.apply(answer, (there,))
            found.close()
            if first is None:
                first = open_sockets(), pool.apply(open_sockets)
        until(lambda: open_sockets() <= first[0])
        assert pool.apply(open_sockets) == first[1]
    # with what cloudpickle sends: the pickle is begun twice
    queue = fiber.SimpleQueue()
    before = open_sockets()
    queue.put([there, there, lambda: None])
    one, same, _ = queue.get()
    assert one is same
    one.close()
    queue.put(there)
    # nobody reads it
    del queue
    until(lambda: open_sockets() < before)


def test_where_it_cannot_be_sent_an_error_says_so(pair, monkeypatch):
    _, there = pair
    for refuse in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"^cannot pickle 'socket' object$"):
            refuse(there)
    with fiber.Pool(1) as pool:
        with monkeypatch.context() as far:
            far.setattr(packets, "send_descriptors", lambda *_: False)
            with pytest.raises(OSError, match="is of another host or network namespace"):
                pool.apply(answer, (there,))
        monkeypatch.setattr(Store, "has_descriptors", False)
        with pytest.raises(TypeError, match="send the socket's address, and connect to it there"):
            pool.apply(answer, (there,))
