"""Ends that nng misses are found, and no thread stays for it."""

from __future__ import annotations

import threading

import pytest

from fiber._wire import nng
from fiber._wire.frames import Kind
from fiber.exceptions import PeerLostError
from fiber.model.timing import Timing
from wire_world import TIMEOUT, Mailbox, until

OFTEN = Timing(nng_check=0.05)


def is_watching():
    return any(thread.name == "fiber-watch" for thread in threading.enumerate())


def test_ends_during_traffic_are_noticed_on_both_sides(listen):
    """Without the watch about one in twenty is lost; each is cut while frames are on their way."""
    listening = listen("tls+tcp", timing=OFTEN)
    mailbox = Mailbox()
    listening.endpoint.serve(2, mailbox)
    for number in range(60):
        link = listening.link(f"w{number}", timing=OFTEN)
        peer = listening.peer(f"w{number}")
        for _ in range(7):
            peer.send(Kind.CAST, 1, 1, [b"x" * 100])
            link.send(Kind.CAST, 3, 1, [b"x" * 100])
        if number % 2:
            peer._listener.close_pipe(peer._pipe)
            with pytest.raises(PeerLostError):
                while True:
                    link.receive(timeout=TIMEOUT)
        else:
            link.close()
        assert mailbox.next_lost() is peer


def test_the_thread_runs_while_there_are_pipes_to_watch(listen):
    listening = listen("tls+tcp")
    assert not is_watching()
    links = [listening.link(f"w{number}") for number in range(3)]
    assert is_watching()
    for link in links:
        link.close()
    until(lambda: not is_watching())
    assert listening.link("again").peer
    assert is_watching()


def test_connections_within_a_host_need_none(listen):
    listening = listen("ipc")
    assert listening.link().peer
    assert not is_watching()
    assert not nng._pipes


def test_a_pipe_that_is_gone_already_is_dropped(listen):
    """Nng may report a pipe's end before its beginning."""
    listening = listen("tls+tcp", timing=OFTEN)
    link = listening.link(timing=OFTEN)
    kept = dict(nng._pipes)
    assert len(kept) == 2
    link.close()
    until(lambda: not nng._pipes)
    with nng._lock:
        nng._pipes.update(kept)
    other = listening.link("other")
    until(lambda: not kept.keys() & nng._pipes.keys())
    other.send(Kind.CALL, 1, 1, [b"x"])
    assert bytes(other.receive(timeout=TIMEOUT).body) == b"x"
