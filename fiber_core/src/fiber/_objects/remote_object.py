"""Side of processes that do not own a shared object: the connection to its owner, its handles, its messages."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base.entry_points import load_object
from fiber._base.threads import SerialExecutor
from fiber._objects import protocol
from fiber._objects.address import NO_REFERENCE, Address, Shape
from fiber._objects.protocol import Op
from fiber._objects.queue.progress import ProgressPage, ProgressSlot
from fiber._wire.frames import Buffer, Message
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.queue.messages import Item
    from fiber._objects.store import Store
    from fiber._wire.client import Client, PendingCall

# not served: its refusal proves that all messages sent before have arrived
_UNSERVED_TARGET = 2**64 - 1


def without_traceback(error: BaseException) -> BaseException:
    """The error without the tracebacks of itself and its causes, to be kept.

    Their frames would keep the local variables of the user's functions alive, handles among them.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


class ItemStream(Protocol):
    """Way of the descriptors of items in memory; see :mod:`~fiber._objects.queue.descriptor_stream`."""

    #: True once references may be sent to the other side
    is_open: bool

    def send_items(self, items: Iterable[Item]) -> list[Item]:
        """Send the descriptors of items in memory; returns the items, with references in place of these."""

    def receive_items(self, items: Iterable[Item]) -> list[Item]:
        """Receive the descriptors of references; returns the items, with memory in place of these."""

    def close(self) -> None:
        """Close it."""


class Owner:
    """An owner of objects, dialled on first use. A lost connection is not made again.

    On the loss, the owner gave items and permits of this process to others; a new connection
    belongs to a new ``Owner``, with handles of its own.
    """

    def __init__(self, store: Store, ident: str, urls: Sequence[str]) -> None:
        self.ident = ident
        self._store = store
        #: its URLs, best first
        self.urls = urls
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._failed = False
        self._cause: BaseException | None = None
        self._page: ProgressPage | None = None
        # guards the stream, and is held while it is made
        self._stream_lock = threading.Lock()
        #: stream for descriptors to the owner, if there is one so far
        self.descriptor_stream: ItemStream | None = None
        self._has_tried_stream = False
        # runs actions in order that must not delay user threads or the handler thread
        self._executor = SerialExecutor(f"fiber-owner-{ident}", expected=PeerLostError)

    @property
    def is_lost(self) -> bool:
        """True once it is lost, or could not be reached."""
        return self._failed or (self._client is not None and self._client.lost)

    @property
    def is_same_host(self) -> bool:
        """True where it runs on this host."""
        return self._client is not None and self._client.peer.host == self._store.host

    @property
    def is_local_socket(self) -> bool:
        """True where it is reached by a Unix domain socket."""
        url = "" if self._client is None else self._client.url
        return url.partition("://")[0].rpartition("@")[2] in ("unix", "ipc")

    @property
    def survives_exit(self) -> bool:
        """True where sent messages arrive even if this process dies: the kernel has them."""
        return self._client is not None and self._client.survives_exit

    def loss_error(self, kind_name: str) -> PeerLostError:
        """The error for the user of one of its objects when it is lost."""
        if self._client is None:
            msg = f"the process that this {kind_name} lives in, {self.ident}, cannot be reached"
        else:
            peer = self._client.peer
            msg = f"the process that this {kind_name} lives in is gone: {peer.pid} on {peer.host}"
        error = PeerLostError(msg)
        error.__cause__ = self._cause
        return error

    # -- messages

    def call(self, target: int, segments: Sequence[Buffer]) -> PendingCall:
        """Send a message that is answered.

        Raises:
            PeerLostError: it is lost.
        """
        return (self._client or self._connection()).call(target, segments)

    def cast(self, target: int, segments: Sequence[Buffer]) -> None:
        """Send a message without answer.

        Raises:
            PeerLostError: it is lost.
        """
        (self._client or self._connection()).cast(target, segments)

    def on_notice(self, target: int, action: Callable[[Message], None]) -> Client:
        """Run ``action`` with each notice about one of its objects, on the handler thread.

        Returns:
            The connection.

        Raises:
            PeerLostError: it is lost.
        """
        client = self._connection()
        client.on_cast(target, action)
        return client

    def forget(self, target: int) -> None:
        """Undo :meth:`on_notice`."""
        if self._client is not None:
            self._client.forget(target)

    def void(self, target: int, reference_id: int) -> None:
        """Void the reference of a pickle that will not be loaded; callable from finalizers."""
        if self.is_lost:
            return
        message = protocol.VOID.pack(Op.VOID, reference_id)
        action = functools.partial(self.cast, target, [message])
        if not self.submit(action):
            # retired meanwhile, and its connection may have no other use
            self._store.call_soon(functools.partial(self._store.run_in_background, action))

    def submit(self, action: Callable[[], Any]) -> bool:
        """Run an action on the executor; False where that has ended."""
        return self._executor.submit(action)

    def sync(self, timeout: float | None = None) -> bool:
        """Wait until all messages sent before have arrived or are lost; False if not in time."""
        if self._client is None:
            return True
        try:
            return self.call(_UNSERVED_TARGET, ()).wait(timeout)
        except PeerLostError:
            return True

    def deliver(self) -> None:
        """Wait until all messages sent before arrive even if this process dies."""
        if not self.survives_exit:
            self.sync()

    # -- progress of readers

    def slot(self) -> ProgressSlot:
        """A slot in which a reader of one of its queues notes its progress."""
        with self._lock:
            if self._page is None and self.is_same_host:
                self._page = self._store.new_page()
            return ProgressSlot.private() if self._page is None else self._page.slot()

    def release(self, slot: ProgressSlot) -> None:
        """Free the slot of a reader."""
        with self._lock:
            if self._page is not None:
                self._page.release(slot)

    def page(self) -> tuple[bytes, bytes]:
        """Tag and name of the slots' page; empty without one."""
        page = self._page
        return (b"", b"") if page is None else (page.tag, page.name.encode())

    # -- descriptors of items in memory

    def open_descriptor_stream(self, target: int) -> ItemStream | None:
        """Return the stream for descriptors to the owner, made by its queue ``target``; None where impossible.

        Not on the handler thread.

        Raises:
            PeerLostError: it is lost.
        """
        with self._stream_lock:
            if not self._has_tried_stream:
                if self._store.has_descriptors and self.is_same_host:
                    make = load_object("fiber._objects.queue.descriptor_stream:open_stream")
                    make(self, target, self._keep_stream)
                self._has_tried_stream = True
            return self.descriptor_stream

    def _keep_stream(self, stream: ItemStream) -> None:
        self.descriptor_stream = stream

    # -- the end

    def drain(self) -> None:
        """Wait until all submitted actions are done."""
        self._executor.drain()

    def retire(self) -> None:
        """End the executor without waiting for it."""
        self._executor.end()
        if self._page is not None:
            self._page.close()
        stream = self.descriptor_stream
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """End the executor and wait for it; idempotent."""
        self.retire()
        self._executor.close()

    def _connection(self) -> Client:
        with self._lock:
            return self._client or self._dial()

    def _dial(self) -> Client:
        for url in () if self._failed else self._store.best(self.urls):
            try:
                self._client = self._store.client(url)
            except TransportError as error:
                self._cause = without_traceback(error)
            else:
                self._store.watch(self, self._client)
                return self._client
        self._failed = True
        raise self.loss_error(kind_name="object")


#: slot, tag and name of the progress page of an end without one
NO_PAGE = (-1, b"", b"")


class RemoteObject:
    """Base of the other processes' sides; one for each object, shared by its handles."""

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._address = address
        self._shape = address.shape
        #: name of its owner's auth domain; None for an owner of this run
        self.auth_domain = address.auth_domain
        self.target = address.target
        #: sends a message without answer
        self.cast: Callable[[Sequence[Buffer]], None] = functools.partial(owner.cast, self.target)
        #: the connection to its owner, once it is dialled; never another one
        self.client: Client | None = None
        # also held while the owner is sent changes of ends, so that they arrive in order
        self._lock = threading.RLock()
        # True once the last handle was dropped; a new instance takes its place
        self._is_dropped = False
        self._holds = [0] * self._shape.ends
        self._attached: set[int] = set()

    @property
    def shape(self) -> Shape:
        """Its ends and directions."""
        return self._shape

    @property
    def address(self) -> Address:
        """Address that is pickled."""
        return self._address

    def address_in(self, auth_domain: str | None) -> Address:
        """Address for processes of an auth domain, of this run if None.

        Raises:
            RuntimeError: they cannot reach its owner.
        """
        if auth_domain not in (None, self.auth_domain):
            msg = (
                f"a {self._shape.name} of another process cannot be sent to a program with another "
                "authkey, which cannot reach that process; send it from there, or what is in it"
            )
            raise RuntimeError(msg)
        return self._address

    @property
    def owner(self) -> Owner:
        """Connection to its owner."""
        return self._owner

    @property
    def is_same_host(self) -> bool:
        """True where its owner runs on this host."""
        return self._owner.is_same_host

    @property
    def is_lost(self) -> bool:
        """True once its owner is lost."""
        return self._owner.is_lost

    # -- for handles

    def hold(self, end: int, reference_id: int = NO_REFERENCE) -> bool:
        """Count one more handle of an end; False where the last one was just dropped."""
        with self._lock:
            if self._is_dropped:
                return False
            self._holds[end] += 1
            if end in self._attached and reference_id == NO_REFERENCE:
                return True
            try:
                client = self._owner.on_notice(self.target, self.on_notice)
                if self.client is None:
                    self.client = client
                    self.cast = client.caster(self.target)
                self._attach(end, reference_id)
            except PeerLostError as error:
                self._attach_to_lost(end)
                self.fail(without_traceback(error))
            return True

    def drop(self, end: int) -> None:
        """Count a handle that was closed."""
        self.submit(functools.partial(self._drop, end))

    # callable from finalizers: the executor takes no lock
    drop_soon = drop

    def issue(self, reference_id: int, end: int, uses: int) -> None:
        """Report the reference of a new pickle."""
        message = protocol.REFERENCE.pack(Op.REFERENCE, end, reference_id, uses)
        self.submit(functools.partial(self.cast, [message]))

    def void(self, reference_id: int) -> None:
        """Void the reference of a pickle that will not be loaded."""
        self._owner.void(self.target, reference_id)

    # -- for subclasses and their parts

    def call(self, segments: Sequence[Buffer]) -> PendingCall:
        """Send a message that is answered."""
        return self._owner.call(self.target, segments)

    def submit(self, action: Callable[[], Any]) -> None:
        """Run an action on the owner's executor."""
        self._owner.submit(action)

    def sync(self) -> None:
        """Wait until all messages sent before have arrived."""
        self._owner.sync()

    def deliver(self) -> None:
        """Wait until all messages sent before arrive even if this process dies."""
        self._owner.deliver()

    def call_later(self, delay: float, action: Callable[[], Any]) -> None:
        """Run an action on the handler thread after a delay in seconds."""
        self._store.call_later(delay, action)

    def loss_error(self, error: BaseException) -> PeerLostError:
        """The error for the user when the owner, or the object at it, is lost."""
        if self.is_lost or not isinstance(error, PeerLostError):
            lost = self._owner.loss_error(self._shape.name)
            lost.__cause__ = lost.__cause__ or error
            return lost
        msg = f"the {self._shape.name} no longer exists in its process; its last holder let it go"
        return PeerLostError(msg)

    # -- for subclasses

    def fail(self, error: BaseException) -> None:
        """The owner, or the object at it, is lost; called without locks, and must not block."""

    def on_notice(self, message: Message) -> None:
        """On the handler thread: take a notice of the owner."""

    def flush(self) -> None:
        """This process exits: send all that was put."""

    def give_back(self) -> None:
        """This process exits: give undelivered items back."""

    def on_exit(self, code: int) -> None:
        """This process exits by itself, with an exit code."""

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        """Open an end for its first handle; slot, tag and name of its progress page."""
        return NO_PAGE

    def _on_attached(self, slot: int, seen: bool) -> None:
        """On the handler thread: the owner has counted this process's handle of an end."""

    def _close(self, end: int) -> None:
        """On the owner's executor: close an end whose last handle was dropped."""

    def _outlives_handles(self) -> bool:
        """On the owner's executor: True to keep this instance for later handles."""
        return False

    # -- inside

    def _attach(self, end: int, reference_id: int) -> None:
        slot, tag, page = NO_PAGE
        if end not in self._attached:
            slot, tag, page = self._open(end)
            self._attached.add(end)
        head = protocol.ATTACH.pack(Op.ATTACH, end, reference_id, slot, tag)
        self.call([head, page]).add_done_callback(functools.partial(self._on_attach_reply, slot))

    def _on_attach_reply(self, slot: int, pending: PendingCall) -> None:
        try:
            (seen,) = protocol.read(protocol.ATTACHED, pending.result())
        except TransportError as error:
            self.fail(error)
        else:
            self._on_attached(slot, bool(seen))

    def _attach_to_lost(self, end: int) -> None:
        if end not in self._attached:
            self._open(end)
            self._attached.add(end)

    def _drop(self, end: int) -> None:
        """On the owner's executor: drop a handle, perhaps the last one."""
        with self._lock:
            self._holds[end] -= 1
            if self._holds[end] or end not in self._attached:
                return
            self._attached.discard(end)
            self._close(end)
            try:
                self.cast([protocol.DETACH.pack(Op.DETACH, end)])
            finally:
                if not self._attached and not self._outlives_handles():
                    self._forget()

    def _forget(self) -> None:
        """With the lock held: leave the registry; the next handle gets a new instance."""
        self._is_dropped = True
        self._store.forget_remote(self)
