"""Fixtures: endpoints on any transport, closed after the test."""

from __future__ import annotations

import queue
import resource

import pytest

from fiber._wire import codec
from fiber._wire.handshake import Credentials
from making import making
from wire_world import TIMEOUT, ListeningEndpoint, Mailbox, address, nng_dialer, raw_listener


@pytest.fixture(params=["unix", "ipc", "tls+tcp"])
def scheme(request):
    return request.param


@pytest.fixture
def listen(folder):
    """Opens endpoints, by default the way of one host; all are closed in the end."""

    def listen(scheme="unix", **options):
        return ListeningEndpoint(scheme, folder, **options)

    with making(listen, ListeningEndpoint.close) as listen:
        yield listen


@pytest.fixture
def limits(monkeypatch):
    """The soft and hard limit as a list, which stands for this process's own."""
    found = [1024, 20_000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(found))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: found.__setitem__(slice(2), both))
    return found


@pytest.fixture
def listening(scheme, listen):
    """One endpoint on each kind of connection."""
    return listen(scheme)


@pytest.fixture
def link(listening):
    """A link to that endpoint; its ident there is ``dialler``."""
    return listening.link()


@pytest.fixture
def peer(listening, link):
    """What the endpoint has of that link."""
    return listening.peer()


@pytest.fixture
def mailbox(listening):
    """What is sent to that endpoint for target 2."""
    mailbox = Mailbox()
    listening.endpoint.serve(2, mailbox)
    return mailbox


@pytest.fixture(params=["ipc", "tls+tcp"])
def pair(request, folder):
    """Both ends of a connection of nng's, and its pipe at the listening one."""
    run = Credentials.new().with_certificate()
    opened = queue.SimpleQueue()
    ours = raw_listener(opened.put)
    theirs = nng_dialer()
    try:
        theirs.dial(ours.listen(address(request.param, folder).bind_url, run), run, timeout=TIMEOUT)
        yield ours, theirs, opened.get(timeout=TIMEOUT)
    finally:
        theirs.close()
        ours.close()


@pytest.fixture
def ours(pair):
    return pair[0]


@pytest.fixture
def theirs(pair):
    return pair[1]


@pytest.fixture
def pipe(pair):
    return pair[2]


@pytest.fixture(params=[True, False], ids=["main by reference", "main by value"])
def main_either_way(request, monkeypatch):
    monkeypatch.setattr(codec, "_main_by_reference", request.param)


@pytest.fixture
def main_by_value(monkeypatch):
    monkeypatch.setattr(codec, "_main_by_reference", False)


@pytest.fixture
def main_by_reference(monkeypatch):
    monkeypatch.setattr(codec, "_main_by_reference", True)
