"""Ends of pipes on their way to other processes: who holds them, and for how long."""

import errno
import os
import pickle
import queue
import select
import socket
import threading
from pathlib import Path

import pytest

from fiber._objects.handle import decode
from fiber._objects.pipe import end as pipe
from fiber._objects.pipe import packets
from fiber._objects.pipe.end import FarEnd
from fiber._objects.queue.messages import ItemWithReferences
from fiber.exceptions import PeerLostError
from waiting import PATIENCE, until
from wire_world import in_thread


@pytest.fixture
def ends(owner):
    """Both ends of a pipe, held by the process that made it."""
    ends = pipe.pair(owner.store, duplex=True)
    for end in ends:
        end.hold(0)
    return ends


def pickled(end, uses=1, reference_id=7):
    """Address and reference id, as in a pickle of an end."""
    address = end.address_in(None)
    end.issue(reference_id, 0, uses)
    return address, 0, reference_id


def take(end):
    item = end.take(True, None)
    return bytes(item.pickled if isinstance(item, ItemWithReferences) else item)


def put(end, item):
    end.put(item, True, None)


def threads_of_bridges():
    return [one for one in threading.enumerate() if one.name == "fiber-bridge"]


def test_a_loaded_end_has_nothing_in_common_with_its_process_but_the_socket(owner, other, ends):
    here, there = ends
    loaded = other.store.hold(*pickled(there))
    there.drop(0)
    # its process keeps it open for the pickle
    put(here, b"first")
    assert take(loaded) == b"first"
    until(lambda: not owner.store._own)
    owner.die()
    put(loaded, b"second")
    assert take(here) == b"second"
    loaded.drop(0)
    with pytest.raises(EOFError):
        here.take(True, None)


@pytest.mark.parametrize("host", [None, "elsewhere"])
def test_it_goes_on_from_process_to_process_wherever_that_is(world, other, ends, host):
    here, there = ends
    second = world.node("second", host=host).store.hold(*pickled(there))
    there.drop(0)
    last = other.store.hold(*pickled(second))
    second.drop(0)
    put(last, b"by way of two")
    assert take(here) == b"by way of two"
    put(here, b"and back")
    assert take(last) == b"and back"
    last.drop(0)
    with pytest.raises(EOFError):
        here.take(True, None)


def test_one_that_comes_back_is_the_same(owner, ends):
    _, there = ends
    assert owner.store.hold(*pickled(there)) is there


def test_a_pickle_that_nobody_will_load_does_not_hold_it(ends):
    here, there = ends
    pickled(there)
    there.drop(0)
    assert not here.poll(0.01)
    there.void(7)
    with pytest.raises(EOFError):
        here.take(True, None)


@pytest.mark.parametrize("when", ["before it is asked", "after its last holder"])
def test_one_whose_process_has_let_it_go_raises_when_it_is_used(owner, other, ends, when):
    _, there = ends
    where = pickled(there)
    if when == "before it is asked":
        owner.die()
    else:
        there.void(7)
        there.drop(0)
        until(lambda: not owner.store._own)
    loaded = other.store.hold(*where)
    for _ in range(2):
        with pytest.raises(PeerLostError, match="gone|no longer exists|cannot be reached"):
            put(loaded, b"never")
    loaded.drop(0)


def test_a_process_that_ends_waits_until_it_was_loaded_or_nobody_is_at_the_other_end(ends):
    here, there = ends
    assert there.is_drained()
    pickled(there)
    assert not there.is_drained()
    here.drop(0)
    assert there.is_drained()


def test_one_that_is_dropped_before_it_was_used_is_let_go(owner, other, ends):
    here, there = ends
    loaded = other.store.hold(*pickled(there))
    there.drop(0)
    loaded.drop(0)
    with pytest.raises(EOFError):
        here.take(True, None)
    until(lambda: not other.store._receipts and not owner.store._own)


def test_messages_of_strangers_are_not_taken_for_it(other, ends, monkeypatch):
    """Any user of the host may send to an abstract socket whose name it has seen."""
    here, there = ends
    send, names = packets.send_descriptors, []

    def send_after_a_stranger(sent, name, token):
        names.append(name)
        with open(os.devnull) as stranger:
            send([stranger.fileno()], name, b"x" * len(token))
        return send(sent, name, token)

    monkeypatch.setattr(packets, "send_descriptors", send_after_a_stranger)
    loaded = other.store.hold(*pickled(there))
    put(loaded, b"ours")
    assert take(here) == b"ours"
    assert len(names) == 1
    assert not send([there.fileno()], bytes(16), bytes(16)), "nobody waits there"


@pytest.mark.parametrize("lacking", ["descriptor", "bridge"])
def test_one_that_cannot_be_handed_over_is_an_error_to_its_user(other, ends, monkeypatch, lacking):
    def send(sent, name, token):
        if lacking == "bridge":
            return False
        # as where the receiver has no descriptor left
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as courier:
            courier.sendto(token, packets._abstract(name))
        return True

    def refuse(*_):
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(packets, "send_descriptors", send)
    monkeypatch.setattr(pipe, "_lay_bridge", refuse)
    loaded = other.store.hold(*pickled(ends[1]))
    with pytest.raises(OSError, match="no descriptor is left|no longer exists"):
        put(loaded, b"never")


def test_it_is_read_without_waiting_and_not_after_it_was_closed(ends):
    here, there = ends
    with pytest.raises(queue.Empty):
        here.take(False, None)
    put(there, b"one")
    assert bytes(here.take(True, PATIENCE)) == b"one"
    here.drop(0)
    with pytest.raises(OSError, match="handle is closed"):
        here.take(False, None)


def test_a_value_that_cannot_be_pickled_leaves_no_memory(ends):
    here, _ = ends
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(TypeError, match="pickle"):
            here.put_value([bytes(200_000), threading.Lock()])
    assert len(list(Path("/dev/fd").iterdir())) <= before


@pytest.mark.parametrize("large", [bytes(200_000), bytearray(200_000), memoryview(bytes(200_000))])
def test_large_parts_of_a_value_arrive_as_they_were(ends, large):
    here, there = ends
    large = large if type(large) is not memoryview else pickle.PickleBuffer(large)
    here.put_value({"small": 1, "large": large})
    found = decode(there.take(True, None))
    assert found == {"small": 1, "large": bytes(200_000)}


class TestBridges:
    """For processes that cannot have a descriptor."""

    @pytest.fixture
    def far(self, world, owner):
        return world.node("far", host="elsewhere")

    def test_an_end_goes_there_and_comes_back_while_both_sides_talk(self, owner, far, ends):
        here, there = ends
        count = 300

        def talk():
            for number in range(count):
                put(here, b"%d" % number)
            return sorted(int(take(here)) for _ in range(count))

        def answer(side):
            for _ in range(count // 3):
                put(side, take(side))

        heard = in_thread(talk)
        answer(there)
        loaded = far.store.hold(*pickled(there))
        there.drop(0)
        answer(loaded)
        back = owner.store.hold(*pickled(loaded))
        loaded.drop(0)
        answer(back)
        assert heard() == list(range(count))
        back.drop(0)
        with pytest.raises(EOFError):
            here.take(True, None)
        until(lambda: not threads_of_bridges())

    @pytest.mark.parametrize("first_gone", ["there", "here"])
    def test_messages_go_both_ways_and_whoever_is_left_is_told(self, far, ends, first_gone):
        here, there = ends
        loaded = far.store.hold(*pickled(there))
        there.drop(0)
        put(here, b"there")
        put(loaded, b"back" * 2**18)
        assert take(loaded) == b"there"
        assert take(here) == b"back" * 2**18
        assert isinstance(loaded._way, FarEnd)
        gone, left = (loaded, here) if first_gone == "there" else (here, loaded)
        gone.drop(0)
        with pytest.raises(EOFError):
            left.take(True, None)
        left.drop(0)
        until(lambda: not threads_of_bridges())

    def test_it_ends_with_the_process_that_asked_for_it(self, far, ends):
        here, there = ends
        loaded = far.store.hold(*pickled(there))
        there.drop(0)
        assert not loaded.poll(0)
        far.die()
        with pytest.raises(EOFError):
            here.take(True, None)
        until(lambda: not threads_of_bridges())

    def test_one_that_only_writes_ends_when_its_reader_is_gone(self, owner, far):
        reader, writer = pipe.pair(owner.store, duplex=False)
        reader.hold(0)
        writer.hold(0)
        loaded = far.store.hold(*pickled(writer))
        writer.drop(0)
        put(loaded, b"read")
        assert take(reader) == b"read"
        reader.drop(0)
        until(lambda: not threads_of_bridges(), timeout=PATIENCE)
        loaded.drop(0)


class TestLoops:
    """Both ends of a pipe as one object: what anybody puts, somebody takes."""

    @pytest.fixture
    def loop(self, owner):
        loop = pipe.loop(owner.store)
        loop.hold(0)
        return loop

    @pytest.fixture
    def far(self, world):
        return world.node("far", host="elsewhere")

    def test_every_holder_puts_and_takes_and_goes_on_without_its_maker(
        self, owner, other, third, loop
    ):
        second = other.store.hold(*pickled(loop))
        put(loop, b"from its maker")
        assert take(second) == b"from its maker"
        put(second, b"large" * 2**18)
        assert take(loop) == b"large" * 2**18
        last = third.store.hold(*pickled(second))
        put(second, b"left")
        assert last.poll(None)
        loop.drop(0)
        owner.die()
        assert take(last) == b"left"
        put(last, b"and back")
        assert take(second) == b"and back"
        assert not last.poll(0)

    def test_an_item_with_references_that_nobody_takes_releases_them(self, owner, loop):
        voided = []
        owner.store.void_references = voided.extend
        references = [("owner", ("unix:///there",), 3, 4)]
        loop.put(ItemWithReferences.of(references, b"never taken"), True, None)
        loop.drop(0)
        until(lambda: voided)
        assert voided == references
        assert not owner.store._receipts

    def test_a_process_that_cannot_have_descriptors_gets_what_it_asks_for_alone(self, far, loop):
        loaded = far.store.hold(*pickled(loop))
        for one in (b"1", b"2", b"3"):
            put(loop, one)
        put(loaded, b"from afar")
        assert isinstance(loaded._way, FarEnd)
        assert take(loaded) == b"1"
        # the others are left to those who are near
        assert [take(loop) for _ in range(3)] == [b"2", b"3", b"from afar"]
        taken = in_thread(lambda: take(loaded))
        put(loop, b"4")
        assert taken() == b"4"
        loaded.drop(0)
        until(lambda: not threads_of_bridges())

    def test_what_that_process_did_not_take_comes_back(self, far, loop):
        loaded = far.store.hold(*pickled(loop))
        # it asks for an item without taking it, as `connection.wait` does
        descriptor = loaded.fileno()
        put(loop, b"1")
        until(lambda: select.select([descriptor], [], [], 0)[0])
        assert not loop.poll(0)
        far.die()
        assert take(loop) == b"1"
        until(lambda: not threads_of_bridges())
