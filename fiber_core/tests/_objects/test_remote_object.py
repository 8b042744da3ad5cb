"""An object that another process holds: references, and pickles on their way."""

import pytest

from fiber._objects.queue.messages import ItemWithReferences
from fiber.exceptions import PeerLostError
from objects_world import put, take
from wire_world import until


def is_broken(writer):
    try:
        writer.put(b"x", True, None)
    except BrokenPipeError:
        return True
    return False


@pytest.mark.parametrize("leave", ["drop", "die"])
def test_readers_get_all_items_and_then_the_end_of_the_last_writer(owner, other, leave):
    mine = owner.pipe()
    theirs = other.remote(mine, end=0)
    mine.drop(0)
    theirs.writer(0).put(b"1", True, None)
    theirs.sync()
    if leave == "drop":
        theirs.drop(0)
    else:
        other.die()

    reader = mine.reader(0)
    assert bytes(reader.take(True, 20)) == b"1"
    with pytest.raises(EOFError):
        reader.take(True, 20)


def test_a_writer_gets_an_error_when_no_reader_is_left(owner, other):
    mine = owner.pipe()
    writer = other.remote(mine, end=0).writer(0)
    mine.drop(1)

    until(lambda: is_broken(writer))


def test_a_late_writer_gets_it_as_well(owner, other):
    mine = owner.pipe()
    mine.drop(1)
    writer = other.remote(mine, end=0).writer(0)
    until(lambda: writer._broken)


def test_a_pickle_in_flight_keeps_an_end_until_it_is_loaded_and_let_go_of(owner, other):
    mine = owner.pipe()
    mine.issue(7, 1, 1)
    address = mine.address
    mine.drop(1)
    mine.writer(0).put(b"1", True, None)
    theirs = other.store.hold(address, 1, 7)
    assert bytes(theirs.reader(0).take(True, 20)) == b"1"
    theirs.drop(1)

    until(lambda: is_broken(mine.writer(0)))


def test_a_process_passes_on_what_it_holds(owner, other, third):
    mine = owner.queue()
    theirs = other.remote(mine)
    theirs.issue(9, 0, 1)
    last = third.store.hold(theirs.address, 0, 9)
    theirs.drop(0)
    put(mine, b"1")

    assert take(last) == b"1"


def test_one_process_has_one_object_for_all_its_handles(owner, other):
    mine = owner.queue()
    first = other.remote(mine)
    assert other.remote(mine) is first
    first.drop(0)
    put(mine, b"1")

    assert take(first) == b"1"


def test_one_that_was_let_go_of_and_taken_again_begins_anew(owner, other):
    mine = owner.queue()
    first = other.remote(mine)
    put(mine, b"1", b"2")
    assert take(first) == b"1"
    first.drop(0)
    again = other.remote(mine)

    assert take(again) == b"2"


def test_in_its_own_process_an_address_is_the_object_itself(owner):
    mine = owner.queue()

    assert owner.store.hold(mine.address, 0, 0) is mine


def test_an_object_without_holders_is_served_no_more(owner, other):
    mine = owner.queue()
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
