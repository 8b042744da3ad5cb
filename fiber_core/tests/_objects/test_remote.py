"""An object that another process holds: references, and pickles on their way."""

import pytest

from fiber._objects.queue.messages import Laden
from fiber.exceptions import PeerLostError
from objects_world import put, take
from wire_world import until


def test_the_last_writers_end_is_heard_after_all_it_put(owner, other):
    mine = owner.pipe()
    theirs = other.remote(mine, end=0)
    mine.drop(0)
    theirs.sink(0).put(b"1", True, None)
    theirs.drop(0)

    source = mine.source(0)
    assert bytes(source.take(True, 20)) == b"1"
    with pytest.raises(EOFError):
        source.take(True, 20)


def test_the_last_writers_death_is_heard(owner, other):
    mine = owner.pipe()
    other.remote(mine, end=0)
    mine.drop(0)
    other.die()

    with pytest.raises(EOFError):
        mine.source(0).take(True, 20)


def test_a_writer_hears_that_nobody_reads_any_more(owner, other):
    mine = owner.pipe()
    sink = other.remote(mine, end=0).sink(0)
    mine.drop(1)

    def broken():
        try:
            sink.put(b"x", True, None)
        except BrokenPipeError:
            return True
        return False

    until(broken)


def test_one_that_comes_too_late_hears_it_as_well(owner, other):
    mine = owner.pipe()
    mine.drop(1)
    sink = other.remote(mine, end=0).sink(0)
    until(lambda: sink._broken)


def test_a_pickle_in_flight_keeps_an_end_until_it_is_loaded_and_let_go_of(owner, other):
    mine = owner.pipe()
    mine.issue(7, 1, 1)
    address = mine.address
    mine.drop(1)
    mine.sink(0).put(b"1", True, None)
    theirs = other.store.take(address, 1, 7)
    assert bytes(theirs.source(0).take(True, 20)) == b"1"
    theirs.drop(1)

    def broken():
        try:
            mine.sink(0).put(b"x", True, None)
        except BrokenPipeError:
            return True
        return False

    until(broken)


def test_a_process_passes_on_what_it_holds(owner, other, third):
    mine = owner.queue()
    theirs = other.remote(mine)
    theirs.issue(9, 0, 1)
    last = third.store.take(theirs.address, 0, 9)
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

    assert owner.store.take(mine.address, 0, 0) is mine


def test_an_object_without_holders_is_served_no_more(owner, other):
    mine = owner.queue()
    address = mine.address
    theirs = other.remote(mine)
    mine.drop(0)
    theirs.drop(0)
    until(lambda: not owner.store._own)

    late = other.store.take(address, 0, 0)
    with pytest.raises(PeerLostError, match="no longer exists"):
        take(late)
    with pytest.raises(PeerLostError):
        owner.store.take(address, 0, 0)


def test_references_in_items_that_nobody_reads_are_let_go_of(owner, other):
    carried, carrier = owner.pipe(), owner.pipe()
    address = carried.address
    carried.issue(5, 0, 1)
    carried.drop(0)
    ticket = (address.ident, address.urls, address.target, 5)
    carrier.sink(0).put(Laden.of([ticket], b""), True, None)
    assert not carried.source(0).ready(0)
    carrier.drop(1)

    with pytest.raises(EOFError):
        carried.source(0).take(True, 20)


def test_also_where_the_object_lives_elsewhere(owner, other):
    carried, carrier = other.pipe(), owner.pipe()
    address = carried.address
    carried.issue(5, 0, 1)
    carried.drop(0)
    ticket = (address.ident, address.urls, address.target, 5)
    carrier.sink(0).put(Laden.of([ticket], b""), True, None)
    carrier.drop(1)

    with pytest.raises(EOFError):
        carried.source(0).take(True, 20)
