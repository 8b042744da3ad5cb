"""The end of a process that owns or uses shared objects."""

import gc
import threading
import time
import weakref

import pytest

from fiber._objects.address import Kind
from fiber.exceptions import PeerLostError
from objects_world import in_thread, put, take
from wire_world import PATIENCE, until


def test_waiting_readers_hear_of_the_owners_death_by_name(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    got = in_thread(lambda: take(theirs))
    until(lambda: mine.lanes[0]._waiting)
    owner.die()

    with pytest.raises(EOFError, match="the process that this queue lives in is gone"):
        got()


def test_a_put_after_the_owners_death_is_an_error(owner, other):
    theirs = other.remote(owner.queue())
    owner.die()
    until(lambda: theirs.is_lost)

    with pytest.raises(PeerLostError):
        put(theirs, b"1")


def test_a_bounded_put_that_waits_hears_of_the_owners_death(owner, other):
    mine = owner.queue(1)
    put(mine, b"1")
    theirs = other.remote(mine)
    done = in_thread(lambda: put(theirs, b"2"))
    until(lambda: mine.lanes[0].holds)
    owner.die()

    with pytest.raises(PeerLostError):
        done()


def test_an_owner_that_cannot_be_reached_shows_when_the_object_is_used(owner, other):
    address = owner.queue().address
    owner.die()
    theirs = other.store.take(address, 0, 0)

    with pytest.raises(PeerLostError, match="cannot be reached"):
        put(theirs, b"1")
    with pytest.raises(PeerLostError):
        take(theirs)


def test_of_an_owner_that_cannot_be_reached_nothing_is_left(owner, other):
    addresses = [owner.queue().address for _ in range(3)]
    owner.die()
    for address in addresses:
        # each is one more try to reach it
        other.store.take(address, 0, 0).drop(0)

    until(lambda: not other.store._remotes and not other.store._owners)


def test_the_error_of_one_that_cannot_be_reached_keeps_nothing_of_its_users(owner, other):
    address = owner.queue().address
    owner.die()

    class Precious:
        pass

    def user():
        precious = Precious()
        return weakref.ref(precious), other.store.take(address, 0, 0)

    gc.disable()
    try:
        precious, theirs = user()
        with pytest.raises(PeerLostError):
            take(theirs)
        assert precious() is None
    finally:
        gc.enable()


def test_those_who_wait_hear_of_a_loss_that_another_thread_finds_first(owner, other, monkeypatch):
    mine = owner.queue()
    theirs = other.remote(mine)
    got = in_thread(lambda: take(theirs))
    until(lambda: mine.lanes[0]._waiting)
    # as where the handler thread has not come to it yet
    monkeypatch.setattr(type(theirs.owner), "is_lost", property(lambda owner: not owner._failed))
    other.store.take(mine.address, 0, 0)

    with pytest.raises(PeerLostError):
        got()


def test_a_normal_end_waits_until_readers_elsewhere_have_what_is_there(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    put(mine, *(str(n).encode() for n in range(100)))
    closed = in_thread(owner.close)

    assert [int(take(theirs)) for _ in range(100)] == list(range(100))
    closed()


def test_it_does_not_wait_for_readers_that_are_gone(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    put(mine, b"1")
    closed = in_thread(owner.close)
    theirs.drop(0)

    closed()


def test_it_waits_no_longer_than_it_is_told(world):
    short = world.node("short", linger=0.05)
    other = world.node("other")
    mine = short.queue()
    other.remote(mine)
    put(mine, b"1")

    short.close()


def test_a_normal_end_sends_what_was_put_and_gives_back_what_was_fetched(owner, other):
    mine = owner.queue()
    theirs = other.remote(mine)
    source = theirs.source(0)
    source._batch, source._since = 1000, time.monotonic()
    put(mine, b"0", b"1", b"2")
    assert take(theirs) == b"0"
    put(theirs, *(b"%d" % n for n in range(3, 1000)))
    other.close()

    assert [int(take(mine)) for _ in range(999)] == list(range(1, 1000))


@pytest.mark.parametrize("kind,end", [(Kind.ONE_WAY, 0), (Kind.ONE_WAY, 1)])
def test_an_end_of_a_one_way_pipe_has_one_side(owner, other, kind, end):
    mine = owner.pipe(kind)
    theirs = other.remote(mine, end=end)

    with pytest.raises(KeyError):
        theirs.source(0) if end == 0 else theirs.sink(0)


def test_what_only_another_program_was_told_of_is_forgotten_without_an_endpoint_of_the_run(owner):
    # the process may be ending, and opens none any more
    mine = owner.queue()
    mine.target = owner.new_target()
    owner.store._own[mine.target] = mine
    endpoint, owner.endpoint = owner.endpoint, None
    try:
        owner.store.forget(mine)
    finally:
        owner.endpoint = endpoint

    assert mine.target not in owner.store._own


def test_an_owner_that_is_met_on_an_errand_at_the_end_is_closed_with_the_others(other):
    begun, may_go_on = threading.Event(), threading.Event()

    def meet():
        begun.set()
        assert may_go_on.wait(PATIENCE)
        other.store._void_elsewhere("0badc0de", ("ipc:///nowhere",), 1, 1)

    other.store.errand(meet)
    assert begun.wait(PATIENCE)
    closed = in_thread(other.store.close)
    until(lambda: other.store._is_over)
    may_go_on.set()
    closed()

    assert "fiber-courier-0badc0de" not in {thread.name for thread in threading.enumerate()}


def test_after_the_end_nothing_is_begun(other):
    done = []
    other.store.close()

    other.store.errand(lambda: done.append(1))

    assert "fiber-errands" not in {thread.name for thread in threading.enumerate()}
    assert done == []
