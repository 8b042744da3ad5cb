"""The end of a process that owns or uses shared objects."""

import gc
import os
import threading
import weakref

import pytest

from fiber._objects.queue.messages import ItemWithReferences
from fiber.exceptions import PeerLostError
from fiber.model.timing import Timing
from objects_world import fetching, put, take
from wire_world import TIMEOUT, in_thread, until


def test_waiting_readers_and_writers_get_an_error_that_names_the_dead_owner(owner, other):
    empty, full = owner.queue(), owner.queue(1)
    put(full, b"1")
    readers, writers = other.remote(empty), other.remote(full)
    got = in_thread(lambda: take(readers))
    done = in_thread(lambda: put(writers, b"2"))
    until(lambda: empty.states[0]._waiting and full.states[0].has_waiting_writers)
    owner.die()

    gone = "the process that this queue lives in is gone"
    with pytest.raises(EOFError, match=gone):
        got()
    for late in (done, lambda: put(readers, b"3")):
        with pytest.raises(PeerLostError, match=gone):
            late()


def test_an_owner_that_cannot_be_reached_shows_when_the_object_is_used(owner, other):
    address = owner.queue().address
    owner.die()
    theirs = other.store.hold(address, 0, 0)

    with pytest.raises(PeerLostError, match="cannot be reached"):
        put(theirs, b"1")
    with pytest.raises(PeerLostError):
        take(theirs)


def test_of_an_owner_that_cannot_be_reached_nothing_is_left(world, owner):
    other = world.node("other", timing=Timing(idle=0.1))
    addresses = [owner.queue().address for _ in range(3)]
    owner.die()
    for address in addresses:
        # each is one more try to reach it
        other.store.hold(address, 0, 0).drop(0)

    until(lambda: not other.store._remotes and not other.store._owners)


def test_the_error_of_one_that_cannot_be_reached_keeps_nothing_of_its_users(owner, other):
    address = owner.queue().address
    owner.die()

    class Precious:
        pass

    def user():
        precious = Precious()
        return weakref.ref(precious), other.store.hold(address, 0, 0)

    gc.disable()
    try:
        precious, theirs = user()
        with pytest.raises(PeerLostError):
            take(theirs)
        assert precious() is None
    finally:
        gc.enable()


def test_waiting_threads_get_the_error_of_a_loss_that_another_thread_finds_first(
    mine, theirs, owner, other, monkeypatch
):
    got = in_thread(lambda: take(theirs))
    until(lambda: mine.states[0]._waiting)
    # as where the handler thread has not come to it yet
    monkeypatch.setattr(type(theirs.owner), "is_lost", property(lambda owner: not owner._failed))
    other.store.hold(mine.address, 0, 0)

    with pytest.raises(PeerLostError):
        got()


def test_a_normal_exit_waits_until_remote_readers_have_all_items(mine, theirs, owner):
    put(mine, *(str(n).encode() for n in range(100)))
    closed = in_thread(owner.close)

    assert [int(take(theirs)) for _ in range(100)] == list(range(100))
    closed()


def test_it_does_not_wait_for_readers_that_are_gone(mine, theirs, owner):
    put(mine, b"1")
    closed = in_thread(owner.close)
    theirs.drop(0)

    closed()


def test_it_waits_no_longer_than_linger(world):
    short = world.node("short", linger=0.05)
    other = world.node("other")
    mine = short.queue()
    other.remote(mine)
    put(mine, b"1")

    short.close()


def test_a_normal_end_sends_what_was_put_and_gives_back_what_was_fetched(mine, theirs, other):
    fetching(theirs)
    put(mine, b"0", b"1", b"2")
    assert take(theirs) == b"0"
    put(theirs, *(b"%d" % n for n in range(3, 1000)))
    other.close()

    assert [int(take(mine)) for _ in range(999)] == list(range(1, 1000))


def test_an_object_exported_to_an_auth_domain_alone_is_forgotten_without_an_endpoint_of_the_run(
    mine, owner
):
    # the process may be ending, and opens none any more
    mine.target = owner.new_target()
    owner.store._own[mine.target] = mine
    endpoint, owner.endpoint = owner.endpoint, None
    try:
        owner.store.forget(mine)
    finally:
        owner.endpoint = endpoint

    assert mine.target not in owner.store._own


def test_an_owner_made_by_a_background_action_at_the_end_is_closed_with_the_others(other):
    begun, may_go_on = threading.Event(), threading.Event()

    def meet():
        begun.set()
        assert may_go_on.wait(TIMEOUT)
        other.store._void_remote_reference("0badc0de", ("ipc:///nowhere",), 1, 1)

    other.store.run_in_background(meet)
    assert begun.wait(TIMEOUT)
    closed = in_thread(other.store.close)
    until(lambda: other.store._is_over)
    may_go_on.set()
    closed()

    assert "fiber-owner-0badc0de" not in {thread.name for thread in threading.enumerate()}


def test_a_receipt_that_comes_at_the_end_is_closed_once(other):
    receipt, writer = os.pipe()
    other.store.await_receipt(receipt, ItemWithReferences.of([], b""))
    other.reactor.call_and_wait(lambda: None)
    begun, may_go_on = threading.Event(), threading.Event()
    other.reactor.call_soon(lambda: (begun.set(), may_go_on.wait(TIMEOUT)))
    assert begun.wait(TIMEOUT)
    os.write(writer, b"1")
    os.close(writer)
    closed = in_thread(other.store.close)
    # it has begun to take leave of the receipt
    until(lambda: other.store._is_over and other.reactor._soon)
    may_go_on.set()
    closed()

    assert other.store._receipts == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(receipt)


def test_after_the_end_nothing_is_begun(other):
    done = []
    other.store.close()

    other.store.run_in_background(lambda: done.append(1))

    assert "fiber-background" not in {thread.name for thread in threading.enumerate()}
    assert done == []
