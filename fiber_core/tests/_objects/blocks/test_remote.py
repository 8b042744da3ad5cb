"""A block of another process: mapped, fetched once a host, and what becomes of it."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

from fiber._objects.address import Kind
from fiber._objects.blocks import block as protocol
from fiber._objects.blocks import copies
from fiber._objects.blocks.block import FETCH, MOST, Block, Op
from fiber._objects.blocks.contents import read
from fiber._objects.memory import sealed
from fiber.exceptions import PeerLostError, WireError
from objects_world import in_thread
from wire_world import until

SIZE = 3 * MOST + 17


@pytest.fixture(autouse=True)
def _collected():
    yield
    # what killed nodes had open is not to be closed while another test looks
    gc.collect()


@pytest.fixture
def far(world, owner):
    return [world.node(name, host="elsewhere") for name in ("far", "farther")]


def block(node, value=None):
    made = Block(node.store, np.arange(SIZE, dtype=np.uint8) if value is None else value)
    made.hold(0)
    return made


def take(node, made):
    """A node's side of a block, as a handle there would have it."""
    remote = node.remote(made)
    remote.meet(made.place)
    remote.sync()
    return remote


def let_go(remote):
    """The last handle of a node goes; its owner has heard of it."""
    remote.drop(0)
    remote.owner.drain()
    remote.sync()


def fetches(made, monkeypatch):
    """Notes every piece that is asked of a block."""
    found = []
    give = made._give

    def noted(peer, message):
        found.append(peer.ident)
        give(peer, message)

    monkeypatch.setattr(made, "_give", noted)
    return found


def test_on_the_owners_host_it_is_the_owners_memory(owner, other, monkeypatch):
    made = block(owner)
    asked = fetches(made, monkeypatch)
    remote = take(other, made)
    assert bytes(remote.body()) == bytes(made.body())
    assert remote.body().readonly
    assert asked == []


def test_elsewhere_one_fetches_it_and_the_others_map_that(owner, far, monkeypatch):
    made = block(owner)
    asked = fetches(made, monkeypatch)
    remotes = [take(node, made) for node in far]
    bodies = [in_thread(remote.body) for remote in remotes]
    assert [bytes(get()) for get in bodies] == [bytes(made.body())] * 2
    pieces = -(-len(made.body()) // MOST)
    assert len(asked) == pieces
    assert len(set(asked)) == 1
    assert [bytes(remote.body()) for remote in remotes] == [bytes(made.body())] * 2
    assert len(asked) == pieces


def test_who_cannot_map_what_others_have_fetches_it(owner, far, monkeypatch):
    made = block(owner)
    asked = fetches(made, monkeypatch)
    first, second = (take(node, made) for node in far)
    first.body()
    first.owner.drain()
    first.sync()
    monkeypatch.setattr(sealed, "find", lambda *_: None)
    assert bytes(second.body()) == bytes(made.body())
    assert set(asked) == {"far", "farther"}


def test_when_who_fetches_it_dies_the_next_one_does(owner, far):
    made = block(owner)
    first, second = (take(node, made) for node in far)
    # told to fetch it, and never does
    pending = first.call([protocol.LOCATE.pack(Op.LOCATE, 0)])
    pending.wait()
    assert not len(pending.result())
    body = in_thread(second.body)
    until(lambda: made._copies._hosts["elsewhere"].waiting)
    far[0].die()
    assert bytes(body()) == bytes(made.body())


def test_a_lack_of_room_is_for_who_has_it(owner, far, monkeypatch):
    made = block(owner)
    first, second = (take(node, made) for node in far)
    real = os.pwrite

    def full(*args):
        monkeypatch.setattr(os, "pwrite", real)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no room for"):
        first.body()
    assert bytes(second.body()) == bytes(made.body())
    assert bytes(first.body()) == bytes(made.body())


def test_what_comes_damaged_is_not_used(owner, far, monkeypatch):
    made = block(owner)
    remote = take(far[0], made)
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "piece_digest", lambda begin, data: bytes(32))
        piece = remote.call([FETCH.pack(Op.FETCH, 0, MOST)])
        piece.wait()
    with pytest.raises(WireError, match=f"{MOST} bytes from 0 on of a shared value came damaged"):
        remote._piece(0, piece)


def test_who_has_it_reads_on_when_its_owner_is_gone(owner, other, far):
    made = block(owner)
    expected = bytes(made.body())
    near, distant, late = take(other, made), take(far[0], made), take(far[1], made)
    distant.body()
    owner.die()
    assert bytes(near.body()) == bytes(distant.body()) == expected
    until(lambda: late.is_lost)
    with pytest.raises(EOFError, match="the process that this shared value lives in is gone: "):
        late.body()


def test_who_waits_when_the_owner_dies_is_told(owner, far):
    made = block(owner)
    first, second = (take(node, made) for node in far)
    first.call([protocol.LOCATE.pack(Op.LOCATE, 0)]).wait()
    body = in_thread(second.body)
    until(lambda: made._copies._hosts["elsewhere"].waiting)
    owner.die()
    with pytest.raises(PeerLostError, match="shared value"):
        body()


def test_its_memory_goes_with_its_last_holder(owner, other, far):
    made = block(owner)
    near, distant = take(other, made), take(far[0], made)
    distant.body()
    made.drop(0)
    let_go(near)
    assert made._sealed is not None
    distant.drop(0)
    until(lambda: made._sealed is None)
    until(lambda: near._sealed is distant._sealed is None)
    with pytest.raises(PeerLostError, match="no longer exists"):
        other.store.take(made.address, 0, 0).body()


def test_without_a_handle_it_stays_for_the_next_one_and_for_others_of_its_host(
    owner, far, monkeypatch
):
    made = block(owner)
    asked = fetches(made, monkeypatch)
    for node in [far[0], far[0], far[1], far[0]]:
        remote = take(node, made)
        assert bytes(remote.body()) == bytes(made.body())
        let_go(remote)
    pieces = -(-len(made.body()) // MOST)
    assert asked == [far[0].ident] * pieces
    assert len(made._copies.holders()) == 2


def test_a_value_is_read_once_for_handles_that_follow_each_other(owner, far):
    made = block(owner, {"a": [1, 2]})
    remote = take(far[0], made)
    found = remote.reading.cell().value()
    let_go(remote)
    again = take(far[0], made)
    assert again.reading.cell().value() is found
    # and by each other process for itself
    assert take(far[1], made).reading.cell().value() is not found


def test_what_no_handle_uses_goes_when_the_owner_lets_go(owner, other, far, monkeypatch):
    class Watched(list):
        __slots__ = ("__weakref__",)

        def __reduce__(self):
            return Watched, ()

    made = block(owner, Watched())
    remotes = [take(node, made) for node in (other, *far)]
    values = [weakref.ref(remote.reading.cell().value()) for remote in remotes]
    for remote in remotes:
        let_go(remote)
    assert all(value() is not None for value in values)
    assert all(remote._sealed is not None for remote in remotes)
    made.drop(0)
    until(lambda: not any(remote._sealed for remote in remotes))
    until(lambda: not any(value() for value in values))
    assert [node.store._remotes for node in (other, *far)] == [{}, {}, {}]
    assert [node.store.unused._sizes for node in (other, *far)] == [{}, {}, {}]


def test_what_no_handle_uses_goes_with_its_owner(owner, far):
    made = block(owner)
    unused, used = take(far[0], made), take(far[1], made)
    unused.body()
    expected = bytes(used.body())
    let_go(unused)
    assert unused._sealed is not None
    owner.die()
    until(lambda: unused._sealed is None)
    assert not far[0].store.unused._sizes
    assert bytes(used.body()) == expected


def test_what_no_handle_uses_goes_when_the_process_ends(owner, far):
    made = block(owner)
    remote = take(far[0], made)
    remote.body()
    let_go(remote)
    far[0].close()
    assert remote._sealed is None
    until(lambda: not made._copies.holders())


def test_the_copy_of_who_is_killed_is_nobodys(owner, far):
    made = block(owner)
    remote = take(far[0], made)
    remote.body()
    let_go(remote)
    assert len(made._copies.holders()) == 1
    far[0].die()
    until(lambda: not made._copies.holders())
    assert bytes(take(far[1], made).body()) == bytes(made.body())


def test_who_needs_the_room_lets_go_of_what_no_handle_uses(owner, far, monkeypatch):
    monkeypatch.setattr(copies, "_SMALL", 0)
    blocks = [block(owner) for _ in range(3)]
    monkeypatch.setattr(far[0].store.unused, "_free", lambda: 8 * 2 * len(blocks[0].body()))
    asked = [fetches(made, monkeypatch) for made in blocks]
    remotes = [take(far[0], made) for made in blocks]
    for remote in remotes:
        remote.body()
        let_go(remote)
    until(lambda: remotes[0]._sealed is None)
    # nobody looks for it there any more, so it can be had all the same
    until(lambda: not blocks[0]._copies.holders())
    assert all(made._copies.holders() for made in blocks[1:])
    assert bytes(take(far[1], blocks[0]).body()) == bytes(blocks[0].body())
    assert {ident for one in asked[1:] for ident in one} == {far[0].ident}
    for made in blocks:
        made.drop(0)
    until(lambda: not any(remote._sealed for remote in remotes))


def test_a_process_that_ends_waits_until_those_who_hold_it_have_it(world, far):
    maker = world.node("maker", linger=20.0)
    made = block(maker)
    expected = bytes(made.body())
    remote = take(far[0], made)
    maker.close()
    assert bytes(remote.body()) == expected


def test_a_process_that_ends_waits_for_nobody_who_has_it(world, other):
    maker = world.node("maker", linger=3600.0)
    remote = take(other, made := block(maker))
    remote.owner.drain()
    remote.sync()
    assert made.is_drained()
    maker.close()
    assert read(remote.body()) is not None


@pytest.mark.parametrize(
    "message",
    [
        FETCH.pack(Op.FETCH, 0, MOST + 1),
        FETCH.pack(Op.FETCH, SIZE * 2, 1),
        FETCH.pack(Op.FETCH, 2**64 - 1, 2),
        FETCH.pack(Op.FETCH, 0, 1)[:-1],
        bytes([Op.HAS]),
        bytes([Op.LOCATE]),
        bytes([151]),
    ],
)
def test_who_says_what_makes_no_sense_is_cut_off_and_others_go_on(owner, other, far, message):
    made = block(owner)
    good, bad = take(far[0], made), take(other, made)
    assert bad.call([message]).wait(20)
    until(lambda: bad.is_lost)
    assert bytes(good.body()) == bytes(made.body())


def test_references_in_a_value_live_as_long_as_it(owner, other):
    released = threading.Event()

    class Reference:
        def __reduce__(self):
            from fiber._wire import codec

            codec.carrier().on_release(released.set)
            return int, ()

    made = block(owner, Reference())
    gc.collect()
    assert made.kind is Kind.BLOCK
    assert not released.is_set()
    made.drop(0)
    assert released.wait(20)
