"""Blocks: immutable values of ``fiber.shared``, made by one process and read by any number.

A process on the owner's host maps the owner's memory. On another host one process fetches the
bytes, in pieces, and the others of that host map its copy; see :mod:`fiber._objects.blocks.copies`.
A copy stays when the last handle is gone.

The bytes are a frame's payload (see :func:`fiber._wire.frames.pack`): the value's pickle, and every buffer of
it out of band. Arrays are views of them. A value is unpickled once in each process.

Protocol. ``LOCATE`` and ``FETCH`` are calls of a holder. ``LOCATE`` is answered with the location
of a copy on the holder's host, or with nothing: then the holder is to ``FETCH`` the block, and no
other process of its host is to do so until this one announces a copy (``HAS``), gives up
(``GIVE_UP``) or is gone. A ``FETCH`` is answered with a piece: a digest of its position and bytes,
and the bytes. A holder announces with ``HAS`` each copy that it maps, may keep it when it holds the
block no more, and sends ``GIVE_UP`` when it has it no more. When no process holds the block, all
with a copy get ``FREED``.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import hashlib
import io
import pickle
import struct
import sys
import threading
import weakref
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from fiber._objects.address import Kind
from fiber._objects.blocks.copies import Answer, Copies
from fiber._objects.memory import backing
from fiber._objects.memory.backing import HEAD, Draft, Location, Sealed
from fiber._objects.owned_object import OwnedObject
from fiber._objects.protocol import read
from fiber._objects.remote_object import NO_PAGE, RemoteObject
from fiber._wire import codec, frames
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Buffer, Message
from fiber._wire.frames import Kind as Frame
from fiber.exceptions import PeerLostError, TransportError, WireError

if TYPE_CHECKING:
    from pathlib import Path

    from fiber._objects.address import Address
    from fiber._objects.remote_object import Owner
    from fiber._objects.store import Store
    from fiber._wire.client import PendingCall


def write_value(value: Any) -> list[Buffer]:
    """Make the segments of a value: its pickle, and its buffers out of band, uncopied.

    Raises:
        pickle.PicklingError: neither pickle nor cloudpickle can pickle it.
    """
    buffers: list[Buffer] = []
    try:
        pickled = _pickled(value, lambda buffer: buffers.append(buffer.raw()))
    except Exception as error:
        kind = type(value).__name__
        msg = f"a {kind} cannot be shared, because it cannot be pickled: {error}"
        raise pickle.PicklingError(msg) from error
    return frames.pack(pickled, buffers)


def read_value(body: memoryview) -> Any:
    """Load the value of a block's bytes.

    Raises:
        Exception: what unpickling it raised.
    """
    pickled, buffers = frames.unpack(body)
    return pickle.loads(pickled, buffers=buffers)


def _pickled(value: Any, place: Callable[[pickle.PickleBuffer], Any]) -> memoryview:
    reducers = _reducers()
    if codec.main_by_reference():
        found: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, 5, buffer_callback=found.append)
        table: Any = ChainMap(reducers, copyreg.dispatch_table)
        pickler.dispatch_table = table
        try:
            pickler.dump(value)
        except RecursionError:
            raise
        # pickled by value below
        except Exception:  # noqa: S110 - the other pickler raises
            pass
        else:
            for buffer in found:
                place(buffer)
            return stream.getbuffer()
    base = codec.value_pickler()
    members = {"dispatch_table": ChainMap(reducers, base.dispatch_table)}
    stream = io.BytesIO()
    type("BlockPickler", (base,), members)(stream, place).dump(value)
    return stream.getbuffer()


def _reducers() -> dict[type, Any]:
    found: dict[type, Any] = {memoryview: _view}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found[numpy.ndarray] = _array
    return found


def _array(array: Any) -> Any:
    # an array with gaps would be pickled in band, and be writable
    whole = array.flags.c_contiguous or array.flags.f_contiguous
    return (array if whole else array.copy()).__reduce_ex__(5)


def _view(view: memoryview) -> Any:
    whole = view if view.c_contiguous else view.tobytes()
    return _load_view, (pickle.PickleBuffer(whole), view.format, view.shape)


def _load_view(buffer: memoryview, form: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(buffer).cast("B")
    if not flat.nbytes:
        # an empty view cannot be cast to a shape with a zero
        return flat if form == "B" else flat.cast(form)  # type: ignore[call-overload] # any format
    return flat.cast(form, shape)  # type: ignore[call-overload,no-any-return] # any format


class BlockBody(Protocol):
    """A block, its owner's or a remote one."""

    def body(self) -> memoryview:
        """Its bytes, fetched if this process does not have them.

        Raises:
            PeerLostError: the owner's process is gone.
        """


class LazyValue:
    """The value of a block, unpickled on first use; kept as long as a handle has it."""

    def __init__(self, block: BlockBody) -> None:
        self._block = block
        self._lock = threading.RLock()
        self._values: list[Any] = []

    def value(self) -> Any:
        """The value.

        Raises:
            PeerLostError: the owner's process was gone before the bytes were fetched.
            Exception: what unpickling it raised.
        """
        if not self._values:
            with self._lock:
                if not self._values:
                    self._values.append(read_value(self._block.body()))
        return self._values[0]


class ValueCache:
    """The one :class:`LazyValue` of a block in this process, while a handle has it.

    Args:
        block: the block.
        keeps: True to keep it without a handle as well, until :meth:`forget`.
    """

    def __init__(self, block: BlockBody, *, keeps: bool = False) -> None:
        self._block = block
        self._lock = threading.Lock()
        self._lazy: weakref.ref[LazyValue] | None = None
        self._keeps = keeps
        self._kept: LazyValue | None = None

    def lazy_value(self) -> LazyValue:
        """The lazy value, the same for all handles in this process."""
        with self._lock:
            found = None if self._lazy is None else self._lazy()
            if found is None:
                found = LazyValue(self._block)
                self._lazy = weakref.ref(found)
            if self._keeps:
                self._kept = found
            return found

    def forget(self) -> None:
        """Keep it for handles only, from now on."""
        with self._lock:
            self._keeps = False
            # deleted with this frame, when the lock is free: __del__ of a value is user code
            found, self._kept = self._kept, None
        del found


class Op(enum.IntEnum):
    """First byte of a holder's message to the owner."""

    LOCATE = 144
    FETCH = 145
    HAS = 146
    GIVE_UP = 147


class Notice(enum.IntEnum):
    """First byte of an owner's message to a holder."""

    #: get a copy now: the owner is about to end
    FETCH_NOW = 148
    #: no process holds the block any more: discard the copy
    FREED = 149


#: most bytes of one piece, so that the owner's handler thread is never busy for long
MAX_BYTES = 2**20
#: bytes of a digest
DIGEST = 32

#: 1 where the holder cannot map copies on its host
LOCATE = struct.Struct("<BB")
#: position, bytes
FETCH = struct.Struct("<BQQ")
GIVE_UP = struct.Struct("<B")
NOTICE = struct.Struct("<B")
_HAS = struct.Struct("<B")
_SPAN = struct.Struct("<QQ")


def has(location: Location) -> bytes:
    """Make a HAS message."""
    return _HAS.pack(Op.HAS) + location.packed()


def read_has(body: Buffer) -> Location:
    """Location in a HAS message.

    Raises:
        WireError: it is malformed.
    """
    return Location.unpack(memoryview(body)[_HAS.size :])


def piece_digest(begin: int, data: Buffer) -> bytes:
    """SHA-256 of a piece: its position, its length and its bytes."""
    return hashlib.sha256(_SPAN.pack(begin, len(data)) + data).digest()


class Block(OwnedObject):
    """A block in its owner's process.

    Raises:
        pickle.PicklingError: the value cannot be pickled.
        OSError: there is no room for it.
    """

    def __init__(self, store: Store, value: Any) -> None:
        super().__init__(store, Kind.BLOCK)
        self.cache = ValueCache(self)
        self._releases: list[Callable[[], Any]] = []
        self._copies: Copies[Peer] = Copies()
        self._hurries = False
        node = store.node
        try:
            # references in the value live as long as the block
            with codec.pickling_into(self):
                segments = write_value(value)
            self._sealed: Sealed | None = backing.seal(
                segments, lambda: node.directory, store.ident
            )
        except BaseException:
            self._release()
            raise
        #: location for processes of this host
        self.location: Location = self._sealed.location
        self._view = self._sealed.view()

    def on_release(self, action: Callable[[], Any]) -> None:
        """Register ``action``, called when no process holds the block any more."""
        self._releases.append(action)

    def body(self) -> memoryview:
        """Its bytes; while it is held."""
        return self._view

    # -- the end of the owner

    def request_flush(self) -> None:
        """Ask holders without a copy to fetch one: the owner is about to end."""
        with self.lock:
            self._hurries = True
            for peer in self._references.peers(0):
                assert isinstance(peer, Peer)
                if not self._copies.has(peer):
                    self._send_fetch_now(peer)

    def is_drained(self) -> bool:
        """True where every holder has a copy and no handle is in transit."""
        with self.lock:
            peers = self._references.peers(0)
            has_all = all(isinstance(peer, Peer) and self._copies.has(peer) for peer in peers)
            return has_all and not self._references.is_arriving(0)

    # -- requests of other processes, with the lock held

    def _on_attach(self, peer: Peer, end: int, slot: int, tag: bytes, page: bytes) -> bool:
        if self._hurries:
            self._send_fetch_now(peer)
        return False

    def _send_fetch_now(self, peer: Peer) -> None:
        peer.send(Frame.CAST, self.target, 0, [NOTICE.pack(Notice.FETCH_NOW)])

    def on_peer_lost(self, peer: Peer) -> None:
        """Remove a process that is gone, and its copy."""
        with self.lock:
            self._send_answers(self._copies.remove(peer))
        super().on_peer_lost(peer)

    def _on_detach(self, peer: Peer, end: int) -> None:
        self._send_answers(self._copies.stop_waiting(peer))

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        if op == Op.LOCATE and message.kind is Frame.CALL:
            _, alone = read(LOCATE, message.body)
            self._send_answers(
                self._copies.locate(_host(peer), peer, message.id, alone=bool(alone))
            )
        elif op == Op.FETCH and message.kind is Frame.CALL:
            self._send_piece(peer, message)
        elif op == Op.HAS:
            location = read_has(message.body)
            self._send_answers(self._copies.add(_host(peer), peer, location))
            self._store.drained()
        elif op == Op.GIVE_UP:
            self._send_answers(self._copies.remove(peer))
        else:
            super()._on_request(peer, message, op)

    def _send_piece(self, peer: Peer, message: Message) -> None:
        _, begin, size = read(FETCH, message.body)
        if size > MAX_BYTES or begin + size > len(self._view):
            msg = f"{size} bytes from {begin} on are asked of a block of {len(self._view)}"
            raise WireError(msg)
        piece = self._view[begin : begin + size]
        digest = piece_digest(begin, piece)
        peer.send(Frame.REPLY, self.target, message.id, [digest, piece])

    def _send_answers(self, answers: Iterable[Answer[Peer]]) -> None:
        for answer in answers:
            body = b"" if answer.location is None else answer.location.packed()
            answer.process.send(Frame.REPLY, self.target, answer.number, [body])

    def _review(self) -> None:
        super()._review()
        if self._hurries:
            self._store.drained()

    def _on_end_closed(self, end: int) -> None:
        found, self._sealed = self._sealed, None
        if found is not None:
            found.close()
            self._view = memoryview(b"")
        for peer in self._copies.holders():
            peer.send(Frame.CAST, self.target, 0, [NOTICE.pack(Notice.FREED)])
        self._release()

    def _release(self) -> None:
        releases, self._releases = self._releases, []
        for action in releases:
            action()


def _host(peer: Peer) -> str:
    return peer.hello.host if peer.hello is not None else ""


# most pieces that are in transit
_WINDOW = 8


class RemoteBlock(RemoteObject):
    """A block of another process; the one object that handles of this process share."""

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self.cache = ValueCache(self, keeps=True)
        # held while the block is mapped or fetched
        self._fetching = threading.Lock()
        self._sealed: Sealed | None = None
        self._size = 0
        # True once the owner has freed it
        self._is_freed = False

    def map_if_local(self, location: Location) -> None:
        """Map it now if its owner is on this host, so that it outlives the owner here."""
        self._size = location.size - HEAD
        if self.is_mappable:
            with self._fetching:
                if self._sealed is None:
                    self._map(location)

    def body(self) -> memoryview:
        """Its bytes.

        Raises:
            PeerLostError: the owner's process is gone, or the block is.
            OSError: there is no room for it.
        """
        with self._fetching:
            if self._sealed is None:
                try:
                    self._get()
                except WireError:
                    raise
                except TransportError as error:
                    raise self.loss_error(error) from error
            assert self._sealed is not None
            return self._sealed.view()

    @property
    def is_mappable(self) -> bool:
        """True where the owner is on this host and reached by a socket of this host."""
        return self.is_same_host and self._owner.is_local_socket

    def evict(self) -> None:
        """Discard the copy of this process unless a handle uses it: others need the room."""
        with self._lock:
            if self._attached or self._is_dropped:
                return
            if not self._is_freed:
                # before another object takes this one's place; a lost owner needs no message
                with contextlib.suppress(PeerLostError):
                    self.cast([GIVE_UP.pack(Op.GIVE_UP)])
            self._forget()
        self.discard()

    def discard(self) -> None:
        """Close the copy; with no lock held, as ``__del__`` of a value is user code."""
        self._store.unused.remove(self)
        with self._fetching:
            found, self._sealed = self._sealed, None
        if found is not None:
            found.close()
        self.cache.forget()

    # -- hooks of a remote object

    def on_notice(self, message: Message) -> None:
        """Take a message of the owner, on the handler thread: it ends, or has freed the block."""
        (notice,) = read(NOTICE, message.body)
        if notice == Notice.FETCH_NOW:
            self.submit(self._get_before_owner_ends)
        elif notice == Notice.FREED:
            self._is_freed = True
            self.submit(self.evict)

    def fail(self, error: BaseException) -> None:
        """Note that the owner is gone, or the block is: handles go on with the copy here."""
        self._is_freed = True
        self.submit(self._evict_and_forget)

    def _evict_and_forget(self) -> None:
        self.evict()
        self.cache.forget()

    def _get_before_owner_ends(self) -> None:
        if not self._attached:
            # no handle here needs it
            return
        try:
            self.body()
        except PeerLostError:
            # raised again where the value is used
            return

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        self._store.unused.remove(self)
        return NO_PAGE

    def _outlives_handles(self) -> bool:
        if self._sealed is None or self._is_freed or self.is_lost:
            return False
        for other in self._store.unused.add(self, self._size):
            other.submit(other.evict)
        return True

    def _drop(self, end: int) -> None:
        try:
            super()._drop(end)
        finally:
            if self._is_dropped:
                self.discard()

    # -- with `_fetching` held

    def _get(self) -> None:
        location = self._locate(alone=False)
        if location is not None and not self._map(location):
            location = self._locate(alone=True)
        if self._sealed is None:
            self._fetch()

    def _locate(self, *, alone: bool) -> Location | None:
        pending = self.call([LOCATE.pack(Op.LOCATE, alone)])
        pending.wait()
        body = pending.result()
        return Location.unpack(body) if len(body) else None

    def _map(self, location: Location) -> bool:
        found = backing.find_sealed(location, self._folder)
        if found is None or found.size != self._size:
            return False
        self._adopt(found)
        return True

    def _adopt(self, found: Sealed) -> None:
        self._sealed = found
        # mapped at once: from now on it does not depend on other processes
        found.view()
        self.submit(functools.partial(self.cast, [has(found.location)]))

    def _fetch(self) -> None:
        for other in self._store.unused.make_room(self._size):
            other.evict()
        try:
            draft = Draft(self._size, self._folder, self._store.ident)
            try:
                for begin, piece in self._pieces():
                    draft.write(begin, piece)
                found = draft.seal()
            except BaseException:
                draft.discard()
                raise
        except BaseException:
            # another process of this host may succeed
            self.submit(functools.partial(self.cast, [GIVE_UP.pack(Op.GIVE_UP)]))
            raise
        self._adopt(found)

    def _pieces(self) -> Iterator[tuple[int, memoryview]]:
        """All pieces with their positions; a few of them are in transit at a time."""
        waiting: deque[tuple[int, PendingCall]] = deque()
        for begin in range(0, self._size, MAX_BYTES):
            size = min(MAX_BYTES, self._size - begin)
            waiting.append((begin, self.call([FETCH.pack(Op.FETCH, begin, size)])))
            if len(waiting) == _WINDOW:
                yield self._piece(*waiting.popleft())
        while waiting:
            yield self._piece(*waiting.popleft())

    def _piece(self, begin: int, pending: PendingCall) -> tuple[int, memoryview]:
        pending.wait()
        answer = pending.result()
        size = min(MAX_BYTES, self._size - begin)
        digest, piece = answer[:DIGEST], answer[DIGEST:]
        if len(piece) != size or piece_digest(begin, piece) != digest:
            msg = f"{size} bytes from {begin} on of a shared value came damaged"
            raise WireError(msg)
        return begin, piece

    def _folder(self) -> Path:
        return self._store.node.directory
