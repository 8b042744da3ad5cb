"""Connection to another process that owns objects which this one uses."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base.entry_points import load_object
from fiber._base.threads import SerialExecutor
from fiber._objects import protocol
from fiber._objects.protocol import Op
from fiber._objects.queue.progress import ProgressPage, ProgressSlot
from fiber._wire.frames import Buffer, Message
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.queue.descriptor_stream import DescriptorStream
    from fiber._objects.store import Store
    from fiber._wire.client import Client, PendingCall

# not served: its refusal proves that all messages sent before have arrived
_UNSERVED_TARGET = 2**64 - 1


def without_traceback(error: BaseException) -> BaseException:
    """The error without the tracebacks of itself and its causes, to be kept.

    Their frames would keep the local variables of the user's functions alive, handles among them.
    kept.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error


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
        self.descriptor_stream: DescriptorStream | None = None
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

    def open_descriptor_stream(self, target: int) -> DescriptorStream | None:
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

    def _keep_stream(self, stream: DescriptorStream) -> None:
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
