"""References to an object: their counts, and the object in the processes that hold it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.address import LASTING, Kind
from fiber._objects.owned_object import References
from fiber._objects.queue.messages import ItemWithReferences
from fiber.exceptions import PeerLostError
from objects_world import put, take
from wire_world import until


@pytest.fixture
def references():
    return References(2)


def test_a_process_counts_once_however_often_it_attaches_and_not_when_it_is_lost(references):
    for end in (0, 1):
        references.attach("peer", end, 0)
        references.attach("peer", end, 0)
    assert references.peers(1) == {"peer"}

    references.detach("peer", 1)
    assert [references.is_held(end) for end in (0, 1)] == [True, False]
    references.lose("peer")
    assert not references.is_held(0)


@pytest.mark.parametrize("uses, held", [(1, False), (2, False), (3, True), (0, True)])
def test_a_reference_holds_until_it_is_used_up_or_voided(references, uses, held):
    references.issue(5, 1, uses)
    for process in ("a", "b"):
        references.attach(process, 1, 5)
        references.lose(process)
    assert references.is_held(1) == held

    references.void(5)
    assert not references.is_held(1)


def test_a_lasting_reference_holds_and_is_not_waited_for(references):
    references.issue(5, 1, LASTING)
    references.attach("a", 1, 5)
    references.attach("b", 1, 5)
    assert references.is_expected(1)
    references.lose("a")
    references.lose("b")

    assert references.is_held(1)
    assert not references.is_expected(1)


@given(st.permutations(["issue", "attach", "attach"]))
def test_messages_about_a_reference_may_come_in_any_order(order):
    references = References(1)
    names = itertools.count()
    for event in order:
        if event == "issue":
            references.issue(5, 0, 2)
        else:
            references.attach(next(names), 0, 5)
    for name in range(2):
        references.lose(name)

    assert not references.is_held(0)


def test_voiding_one_that_is_not_reported_yet_counts_and_leaves_the_others(references):
    references.void(5)
    references.issue(5, 0, 1)
    assert not references.is_held(0)

    for reference in (6, 7):
        references.issue(reference, 0, 1)
    references.void(6)
    assert references.is_held(0)


def test_an_end_that_does_not_exist_has_no_references(references):
    references.attach("peer", 7, 0)
    references.issue(5, 9, 1)

    assert not references.is_held(0)
    assert not references.is_held(1)


@pytest.mark.parametrize("late", [False, True])
def test_a_writer_gets_an_error_when_no_reader_is_left(owner, other, late):
    mine = owner.pipe()
    if late:
        mine.drop(1)
    writer = other.remote(mine, end=0).writer(0)
    if not late:
        mine.drop(1)

    with pytest.raises(BrokenPipeError):
        # it is told a moment later
        until(lambda: writer.put(b"x", True, None))


@pytest.mark.parametrize("end", [0, 1])
def test_an_end_of_a_one_way_pipe_has_one_side(owner, other, end):
    theirs = other.remote(owner.pipe(Kind.ONE_WAY), end=end)

    with pytest.raises(KeyError):
        theirs.reader(0) if end == 0 else theirs.writer(0)


def test_one_process_has_one_object_for_all_its_handles_until_the_last_is_gone(mine, owner, other):
    assert owner.store.hold(mine.address, 0, 0) is mine
    first = other.remote(mine)
    assert other.remote(mine) is first
    put(mine, b"1", b"2")
    first.drop(0)
    assert take(first) == b"1"
    first.drop(0)

    assert take(other.remote(mine)) == b"2", "it begins anew"


def test_an_object_without_holders_is_served_no_more(mine, owner, other):
    address = mine.address
    theirs = other.remote(mine)
    mine.drop(0)
    theirs.drop(0)
    until(lambda: not owner.store._own)

    late = other.store.hold(address, 0, 0)
    with pytest.raises(PeerLostError, match="no longer exists"):
        take(late)
    with pytest.raises(PeerLostError):
        owner.store.hold(address, 0, 0)


@pytest.mark.parametrize("maker", ["owner", "other"])
def test_references_in_unread_items_are_voided(owner, other, maker):
    carried, carrier = (owner if maker == "owner" else other).pipe(), owner.pipe()
    address = carried.address
    carried.issue(5, 0, 1)
    carried.drop(0)
    reference_id = (address.ident, address.urls, address.target, 5)
    carrier.writer(0).put(ItemWithReferences.of([reference_id], b""), True, None)
    assert not carried.reader(0).poll(0)
    carrier.drop(1)

    with pytest.raises(EOFError):
        carried.reader(0).take(True, 20)
