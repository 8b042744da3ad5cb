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
from fiber._objects.blocks.block import FETCH, MAX_BYTES, Block, Op, read_value
from fiber._objects.memory import backing
from fiber.exceptions import PeerLostError, WireError
from wire_world import in_thread, until

SIZE = 3 * MAX_BYTES + 17


@pytest.fixture(autouse=True)
def _collected():
    yield
    # what killed nodes had open is not to be closed while another test looks
    gc.collect()


@pytest.fixture
def remote_nodes(world, owner):
    return [world.node(name, host="another") for name in ("far", "farther")]


def block(node, value=None):
    return node.make(Block, np.arange(SIZE, dtype=np.uint8) if value is None else value)


@pytest.fixture
def made(owner):
    return block(owner)


def take(node, made):
    """A node's side of a block, as a handle there would have it."""
    remote = node.remote(made)
    remote.map_if_local(made.location)
    remote.sync()
    return remote


def discard(remote):
    """The last handle of a node goes; its owner has heard of it."""
    remote.drop(0)
    remote.owner.drain()
    remote.sync()


def fetches(made, monkeypatch):
    """Notes every piece that is requested of a block."""
    found = []
    give = made._send_piece

    def noted(peer, message):
        found.append(peer.ident)
        give(peer, message)

    monkeypatch.setattr(made, "_send_piece", noted)
    return found


def test_on_the_owners_host_it_is_the_owners_memory(made, other, monkeypatch):
    requested = fetches(made, monkeypatch)
    remote = take(other, made)
    assert bytes(remote.body()) == bytes(made.body())
    assert remote.body().readonly
    assert requested == []


def test_on_another_host_one_fetches_it_and_the_others_map_its_copy(
    made, remote_nodes, monkeypatch
):
    requested = fetches(made, monkeypatch)
    remotes = [take(node, made) for node in remote_nodes]
    bodies = [in_thread(remote.body) for remote in remotes]
    assert [bytes(get()) for get in bodies] == [bytes(made.body())] * 2
    pieces = -(-len(made.body()) // MAX_BYTES)
    assert len(requested) == pieces
    assert len(set(requested)) == 1
    assert [bytes(remote.body()) for remote in remotes] == [bytes(made.body())] * 2
    assert len(requested) == pieces


def test_a_process_that_cannot_map_copies_fetches_it(made, owner, remote_nodes, monkeypatch):
    requested = fetches(made, monkeypatch)
    first, second = (take(node, made) for node in remote_nodes)
    first.body()
    first.owner.drain()
    first.sync()
    monkeypatch.setattr(backing, "find_sealed", lambda *_: None)
    assert bytes(second.body()) == bytes(made.body())
    assert set(requested) == {"far", "farther"}


@pytest.mark.parametrize("dies", ["the fetching process", "the owner"])
def test_one_that_waits_fetches_it_itself_when_the_fetching_process_dies(
    made, owner, remote_nodes, dies
):
    first, second = (take(node, made) for node in remote_nodes)
    # it is to fetch it, and never does
    pending = first.call([protocol.LOCATE.pack(Op.LOCATE, 0)])
    pending.wait()
    assert not len(pending.result())
    body = in_thread(second.body)
    until(lambda: made._copies._hosts["another"].waiting)
    if dies == "the owner":
        owner.die()
        with pytest.raises(PeerLostError, match="shared value"):
            body()
    else:
        remote_nodes[0].die()
        assert bytes(body()) == bytes(made.body())


def test_a_lack_of_room_is_an_error_in_its_process_alone(made, remote_nodes, monkeypatch):
    first, second = (take(node, made) for node in remote_nodes)
    real = os.pwrite

    def full(*args):
        monkeypatch.setattr(os, "pwrite", real)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no room for"):
        first.body()
    assert bytes(second.body()) == bytes(made.body())
    assert bytes(first.body()) == bytes(made.body())


def test_what_comes_damaged_is_not_used(made, remote_nodes, monkeypatch):
    remote = take(remote_nodes[0], made)
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "piece_digest", lambda begin, data: bytes(32))
        piece = remote.call([FETCH.pack(Op.FETCH, 0, MAX_BYTES)])
        piece.wait()
    with pytest.raises(
        WireError, match=f"{MAX_BYTES} bytes from 0 on of a shared value came damaged"
    ):
        remote._piece(0, piece)


def test_its_memory_goes_with_its_last_holder(made, other, remote_nodes):
    mapped, fetched = take(other, made), take(remote_nodes[0], made)
    fetched.body()
    made.drop(0)
    discard(mapped)
    assert made._sealed is not None
    fetched.drop(0)
    until(lambda: made._sealed is None)
    until(lambda: mapped._sealed is fetched._sealed is None)
    with pytest.raises(PeerLostError, match="no longer exists"):
        other.store.hold(made.address, 0, 0).body()


def test_without_a_handle_it_stays_for_the_next_one_and_for_others_of_its_host(
    made, remote_nodes, monkeypatch
):
    requested = fetches(made, monkeypatch)
    for node in [remote_nodes[0], remote_nodes[0], remote_nodes[1], remote_nodes[0]]:
        remote = take(node, made)
        assert bytes(remote.body()) == bytes(made.body())
        discard(remote)
    pieces = -(-len(made.body()) // MAX_BYTES)
    assert requested == [remote_nodes[0].ident] * pieces
    assert len(made._copies.holders()) == 2


def test_what_no_handle_uses_goes_when_the_owner_lets_go(owner, other, remote_nodes, monkeypatch):
    class Watched(list):
        __slots__ = ("__weakref__",)

        def __reduce__(self):
            return Watched, ()

    made = block(owner, Watched())
    remotes = [take(node, made) for node in (other, *remote_nodes)]
    values = [weakref.ref(remote.cache.lazy_value().value()) for remote in remotes]
    for remote in remotes:
        discard(remote)
    assert all(value() is not None for value in values)
    assert all(remote._sealed is not None for remote in remotes)
    made.drop(0)
    until(lambda: not any(remote._sealed for remote in remotes))
    until(lambda: not any(value() for value in values))
    assert [node.store._remotes for node in (other, *remote_nodes)] == [{}, {}, {}]
    assert [node.store.unused._sizes for node in (other, *remote_nodes)] == [{}, {}, {}]


def test_what_no_handle_uses_goes_with_its_owner(made, owner, remote_nodes):
    unused, used = take(remote_nodes[0], made), take(remote_nodes[1], made)
    unused.body()
    expected = bytes(used.body())
    discard(unused)
    assert unused._sealed is not None
    owner.die()
    until(lambda: unused._sealed is None)
    assert not remote_nodes[0].store.unused._sizes
    assert bytes(used.body()) == expected


@pytest.mark.parametrize("end", ["close", "die"])
def test_what_no_handle_uses_goes_with_its_process_and_is_forgotten(made, remote_nodes, end):
    remote = take(remote_nodes[0], made)
    remote.body()
    discard(remote)
    assert len(made._copies.holders()) == 1
    getattr(remote_nodes[0], end)()
    assert end == "die" or remote._sealed is None
    until(lambda: not made._copies.holders())
    assert bytes(take(remote_nodes[1], made).body()) == bytes(made.body())


def test_a_process_that_needs_room_evicts_unused_copies(owner, remote_nodes, monkeypatch):
    monkeypatch.setattr(copies, "_SMALL", 0)
    blocks = [block(owner) for _ in range(3)]
    monkeypatch.setattr(
        remote_nodes[0].store.unused, "_free", lambda: 8 * 2 * len(blocks[0].body())
    )
    requested = [fetches(made, monkeypatch) for made in blocks]
    remotes = [take(remote_nodes[0], made) for made in blocks]
    for remote in remotes:
        remote.body()
        discard(remote)
    until(lambda: remotes[0]._sealed is None)
    # no process looks for it there any more, and another one fetches it
    until(lambda: not blocks[0]._copies.holders())
    assert all(made._copies.holders() for made in blocks[1:])
    assert bytes(take(remote_nodes[1], blocks[0]).body()) == bytes(blocks[0].body())
    assert {ident for one in requested[1:] for ident in one} == {remote_nodes[0].ident}
    for made in blocks:
        made.drop(0)
    until(lambda: not any(remote._sealed for remote in remotes))


def test_a_process_that_ends_waits_until_holders_on_other_hosts_have_a_copy(world, remote_nodes):
    maker = world.node("maker", linger=20.0)
    made = block(maker)
    expected = bytes(made.body())
    remote = take(remote_nodes[0], made)
    maker.close()
    assert bytes(remote.body()) == expected


def test_a_process_that_ends_waits_for_no_holder_with_a_copy(world, other):
    maker = world.node("maker", linger=3600.0)
    remote = take(other, made := block(maker))
    remote.owner.drain()
    remote.sync()
    assert made.is_drained()
    maker.close()
    assert read_value(remote.body()) is not None


def test_references_in_a_value_live_as_long_as_it(owner, other):
    released = threading.Event()

    class Reference:
        def __reduce__(self):
            from fiber._wire import codec

            codec.envelope().on_release(released.set)
            return int, ()

    made = block(owner, Reference())
    gc.collect()
    assert made.kind is Kind.BLOCK
    assert not released.is_set()
    made.drop(0)
    assert released.wait(20)


def test_a_digest_is_of_bytes_and_their_position():
    same = protocol.piece_digest(0, b"abc"), protocol.piece_digest(0, memoryview(b"abc"))
    others = protocol.piece_digest(1, b"abc"), protocol.piece_digest(0, b"abd")
    assert len(set(same)) == 1
    assert len({*same, *others}) == 3
    assert len(same[0]) == protocol.DIGEST
