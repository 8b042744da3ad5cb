"""Messages over one connection to a worker."""

import pytest

from fiber._tasks import protocol
from fiber._tasks.call import Call
from fiber._tasks.pending.events import Dispatch
from fiber._tasks.protocol import Mode
from fiber._tasks.session import Session
from fiber._wire.frames import Kind
from tasks_world import TARGET, FakePeer, Sink


@pytest.fixture
def peer():
    return FakePeer("a")


@pytest.fixture
def session(peer):
    return Session("a/1", peer, TARGET)


def call(function=abs, items=(1, 2, 3, 4)):
    return Call(3, function, Mode.STARMAP, Sink(), items=list(items), chunksize=2, retry=True)


def test_an_entry_has_its_number_range_and_mode(session, peer):
    size = session.send_entry(call(), Dispatch("a/1", 9, 3, 2, 4, 2))
    head, items = peer.tasks()[0]
    assert (head.entry, head.call, head.start, head.stop, head.chunk) == (9, 3, 2, 4, 2)
    assert head.mode == Mode.STARMAP
    assert items == [3, 4]
    assert peer.of_kind(Kind.TASKS)[0].id == 9
    assert 0 < size < 100


def test_the_function_goes_before_its_first_entry_and_never_again(session, peer):
    one = call()
    session.send_entry(one, Dispatch("a/1", 1, 3, 0, 2, 2))
    session.send_entry(one, Dispatch("a/1", 2, 3, 2, 4, 2))
    assert [sent.kind for sent in peer.sent] == [Kind.FUNCTION, Kind.TASKS, Kind.TASKS]
    digest, pickled = protocol.read_function(peer.sent[0].body)
    assert digest == one.digest
    assert bytes(pickled) == b"".join(one.function)


def test_a_revoke_names_its_entry_and_a_retire_is_empty(session, peer):
    session.revoke(5)
    session.retire()
    assert protocol.read_entry(peer.sent[0].body) == 5
    assert peer.sent[1].kind is Kind.RETIRE


def test_cut_closes_the_connection(session, peer):
    session.disconnect()
    assert peer.closed
