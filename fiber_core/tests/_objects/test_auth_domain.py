"""Stores of different runs that share an authkey, in one process, over real connections."""

from __future__ import annotations

import pickle
import threading
from multiprocessing import AuthenticationError

import pytest

import objects_world
from fiber._objects import listener_addresses
from fiber._objects.address import Address, Kind
from fiber._objects.handle import AddressWithCredentials
from fiber._wire.handshake import Credentials
from objects_world import put, take

KEY = b"a secret of two programs"


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """Two nodes, each of a run of its own."""
    worlds, nodes = [], []
    for name in ("here", "there"):
        monkeypatch.setattr(objects_world, "RUN", Credentials.new())
        folder = tmp_path / name
        folder.mkdir()
        worlds.append(objects_world.World(folder))
        nodes.append(worlds[-1].node(name))
    yield nodes
    for node in nodes:
        node.store.auth_domains.close()
    for world in reversed(worlds):
        world.close()


@pytest.fixture
def auth_domain(strangers, tmp_path):
    """The auth domain of the first one, which listens for it."""
    domains = strangers[0].store.auth_domains
    auth_domain = domains.of(KEY)
    domains.open(auth_domain, f"{listener_addresses._UNIX}{tmp_path / 'meeting'}")
    return auth_domain


def test_a_process_without_the_authkey_gets_an_error_with_advice(strangers, auth_domain):
    here, there = strangers
    address = here.queue().address_in(auth_domain.name)
    with pytest.raises(AuthenticationError, match="set current_process"):
        there.store.hold(address, 0, 0)


def test_an_address_that_comes_home_is_the_object_itself(strangers, auth_domain):
    here, _ = strangers
    queue = here.queue()
    assert here.store.hold(queue.address_in(auth_domain.name), 0, 0) is queue


def test_only_exported_objects_are_served_to_an_auth_domain(strangers, auth_domain):
    here, there = strangers
    hidden, told = here.queue(), here.queue()
    # of the run, by which it has a number
    assert hidden.address.auth_domain is None
    address = told.address_in(auth_domain.name)
    guessed = Address(address.ident, address.urls, hidden.target, Kind.QUEUE)

    there.store.auth_domains.of(KEY)
    remote = there.store.hold(guessed, 0, 0)
    with pytest.raises(EOFError):
        remote.reader(0).take(True, 20)


def test_an_object_that_an_auth_domain_cannot_reach_is_not_sent_to_it(strangers, auth_domain):
    here, there = strangers
    there.store.auth_domains.of(KEY)
    remote = there.store.hold(here.queue().address_in(auth_domain.name), 0, 0)
    assert remote.address_in(auth_domain.name) is remote.address_in(None)
    with pytest.raises(RuntimeError, match="cannot be sent to a program with another authkey"):
        remote.address_in("0" * 16)


def test_an_exiting_process_waits_for_the_last_messages_to_a_retired_owner(
    strangers, auth_domain, monkeypatch
):
    here, there = strangers
    there.store.auth_domains.of(KEY)
    queue = here.queue()
    remote = there.store.hold(queue.address_in(auth_domain.name), 0, 0)
    owner = remote.owner
    told = threading.Event()
    farewell = owner.sync

    def sync(timeout=None):
        # as long as it takes until the process is about to end
        assert ending.wait(20)
        answered = farewell(timeout)
        told.set()
        return answered

    def close():
        assert told.is_set(), "connections were closed before what was said had arrived"
        closing()

    ending = threading.Event()
    closing = there.store.auth_domains.close
    monkeypatch.setattr(owner, "sync", sync)
    monkeypatch.setattr(there.store, "_linger", ending.set)
    monkeypatch.setattr(there.store.auth_domains, "close", close)
    put(remote, b"a last word")
    with there.store._lock:
        there.store._remotes.clear()
    there.store._retire(owner)
    there.store.close()

    assert told.is_set()
    assert take(queue) == b"a last word"


def test_an_address_has_its_auth_domains_credentials_within_a_run_and_does_not_show_them(
    strangers, auth_domain
):
    here, _ = strangers
    address = here.queue().address_in(auth_domain.name)
    passed = AddressWithCredentials(address, auth_domain)
    assert repr(auth_domain.credentials.key) not in repr(passed)
    assert auth_domain.credentials.key.hex().encode() in pickle.dumps(passed)
