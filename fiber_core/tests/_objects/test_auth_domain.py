"""Stores of different runs that share an authkey, in one process, over real connections."""

from __future__ import annotations

import pickle
import threading
from multiprocessing import AuthenticationError

import pytest

import objects_world
from fiber._objects import addresses
from fiber._objects.address import Address, Kind
from fiber._objects.auth_domain import Introduced
from fiber._wire.identity import Credentials
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
        node.store.realms.close()
    for world in reversed(worlds):
        world.close()


def listen(node, path):
    realm = node.store.realms.of(KEY)
    node.store.realms.open(realm, f"{addresses._UNIX}{path}")
    return realm


def test_an_object_is_reached_by_who_knows_the_authkey(strangers, tmp_path):
    here, there = strangers
    realm = listen(here, tmp_path / "meeting")
    queue = here.queue()
    address = queue.address_in(realm.name)
    assert address.realm == realm.name
    assert address.ident == f"here@{here.run_id}"

    there.store.realms.of(KEY)
    remote = there.store.take(address, 0, 0)
    put(remote, b"over there")
    assert take(queue) == b"over there"


def test_who_does_not_know_it_is_told_what_to_do(strangers, tmp_path):
    here, there = strangers
    realm = listen(here, tmp_path / "meeting")
    address = here.queue().address_in(realm.name)
    with pytest.raises(AuthenticationError, match="set current_process"):
        there.store.take(address, 0, 0)


def test_an_address_that_comes_home_is_the_object_itself(strangers, tmp_path):
    here, _ = strangers
    realm = listen(here, tmp_path / "meeting")
    queue = here.queue()
    assert here.store.take(queue.address_in(realm.name), 0, 0) is queue


def test_what_another_realm_cannot_reach_is_not_sent_there(strangers, tmp_path):
    here, there = strangers
    realm = listen(here, tmp_path / "meeting")
    there.store.realms.of(KEY)
    remote = there.store.take(here.queue().address_in(realm.name), 0, 0)
    assert remote.address_in(realm.name) is remote.address_in(None)
    with pytest.raises(RuntimeError, match="cannot be sent to a program with another authkey"):
        remote.address_in("0" * 16)


def test_only_what_was_told_is_served_to_a_realm(strangers, tmp_path):
    here, there = strangers
    realm = listen(here, tmp_path / "meeting")
    hidden, told = here.queue(), here.queue()
    # of the run, by which it has a number
    assert hidden.address.realm is None
    address = told.address_in(realm.name)
    guessed = Address(address.ident, address.urls, hidden.target, Kind.QUEUE)

    there.store.realms.of(KEY)
    remote = there.store.take(guessed, 0, 0)
    with pytest.raises(EOFError):
        remote.source(0).take(True, 20)


def test_what_is_told_where_nobody_listens_yet_is_listened_for(strangers, tmp_path):
    here, there = strangers
    realm = listen(here, tmp_path / "meeting")
    theirs = there.store.realms.of(KEY)
    theirs.met(f"{addresses._UNIX}{tmp_path / 'meeting'}")

    queue = there.queue()
    remote = here.store.take(queue.address_in(realm.name), 0, 0)
    put(remote, b"back")
    assert take(queue) == b"back"


def test_a_process_that_ends_waits_for_what_an_owner_given_up_just_now_is_told(
    strangers, tmp_path, monkeypatch
):
    here, there = strangers
    realm = listen(here, tmp_path / "meeting")
    there.store.realms.of(KEY)
    queue = here.queue()
    remote = there.store.take(queue.address_in(realm.name), 0, 0)
    owner = remote.owner
    told = threading.Event()
    farewell = owner.sync

    def sync(timeout=None):
        # as long as it takes until the process is about to end
        assert ending.wait(20)
        answered = farewell(timeout)
        told.set()
        return answered

    ending = threading.Event()
    closing = there.store.realms.close
    monkeypatch.setattr(owner, "sync", sync)
    monkeypatch.setattr(there.store, "_linger", ending.set)
    monkeypatch.setattr(there.store.realms, "close", lambda: (told.is_set() or missed(), closing()))
    put(remote, b"a last word")
    with there.store._lock:
        there.store._remotes.clear()
    there.store._retire(owner)
    there.store.close()

    assert told.is_set()
    assert take(queue) == b"a last word"


def missed():
    pytest.fail("connections were closed before what was said had arrived")


def test_a_realm_is_introduced_within_a_run_and_its_key_is_not_shown(strangers, tmp_path):
    here, _ = strangers
    realm = listen(here, tmp_path / "meeting")
    address = here.queue().address_in(realm.name)
    passed = here.store.realms.introduce(address, realm.name)
    assert isinstance(passed, Introduced)
    assert repr(realm.credentials.key) not in repr(passed)
    assert realm.credentials.key.hex().encode() in pickle.dumps(passed)
