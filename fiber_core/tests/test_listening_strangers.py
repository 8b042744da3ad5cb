"""Whoever comes to a listener and cannot prove who it is: nobody waits for it, nothing is loaded."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
from multiprocessing import connection as stdlib

import pytest

from fiber._wire import frames
from fiber._wire.frames import Kind
from fiber._wire.identity import Credentials
from fiber.connection import Client, Listener
from wire_world import RawDialer, frame

pytestmark = pytest.mark.usefixtures("shared_runtime")

KEY = b"a secret of two programs"


class Marked:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.fixture(params=["AF_UNIX", "AF_INET"])
def listener(request, tmp_path):
    address = ("localhost", 0) if request.param == "AF_INET" else str(tmp_path / "here")
    with Listener(address, authkey=KEY) as listener:
        yield listener


def bare(listener):
    """A connection of a program that knows the address alone."""
    family = socket.AF_INET if isinstance(listener.address, tuple) else socket.AF_UNIX
    probe = socket.socket(family)
    probe.connect(listener.address)
    return probe


def serves(listener):
    with Client(listener.address, authkey=KEY) as client, listener.accept() as end:
        client.send("right")
        return end.recv() == "right"


def test_silent_strangers_and_nonsense_delay_no_other(listener, tmp_path):
    bomb = pickle.dumps(Marked(tmp_path / "loaded"))
    with contextlib.ExitStack() as held:
        for junk in (b"", b"x", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), bomb):
            probe = held.enter_context(bare(listener))
            with contextlib.suppress(OSError):
                probe.sendall(junk)
            assert serves(listener)
    assert not (tmp_path / "loaded").exists()


def test_a_pickle_before_the_proof_is_not_loaded(tmp_path):
    with Listener(str(tmp_path / "here"), authkey=KEY) as listener:
        url = own_url(listener)
        stranger = RawDialer(url, Credentials.of_authkey(b"another"))
        try:
            bomb = pickle.dumps(Marked(tmp_path / "loaded"))
            stranger.send_bytes(frame(Kind.CALL, bomb, target=2**64 - 2))
            assert stranger.is_cut_off()
        finally:
            stranger.close()
        assert serves(listener)
    assert not (tmp_path / "loaded").exists()


def own_url(listener):
    """What its diallers dial."""
    from fiber._objects.listener_addresses import dial_url

    return dial_url(listener.address, "AF_UNIX")


def test_a_client_of_the_stdlib_is_turned_away(listener):
    # it waits for a challenge in the stdlib's own words, which do not come
    outcome = []

    def dial():
        try:
            stdlib.Client(listener.address, authkey=KEY)
        except (OSError, EOFError, AssertionError) as error:
            outcome.append(error)

    thread = threading.Thread(target=dial)
    thread.start()
    assert serves(listener)
    # over TLS it may wait as long as there is a listener
    listener.close()
    thread.join(60)
    assert len(outcome) == 1


def test_a_listener_that_is_no_fiber_is_an_error_and_not_a_wait(tmp_path):
    path = str(tmp_path / "here")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()

        def hang_up():
            peer, _ = other.accept()
            peer.sendall(b"220 at your service\r\n" + bytes(frames.HEADER.size))
            peer.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        began = time.monotonic()
        with pytest.raises((OSError, stdlib.AuthenticationError)):
            Client(path, authkey=KEY)
        # far from a limit that a busy machine would meet
        assert time.monotonic() - began < 60
        thread.join()
