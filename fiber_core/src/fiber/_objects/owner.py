"""The connection to a process whose objects this one uses."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base.serial_executor import SerialExecutor
from fiber._objects import protocol
from fiber._objects.protocol import Op
from fiber._objects.queue.progress import Page, Slot
from fiber._wire.frames import Buffer, Message
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.store import Store
    from fiber._wire.client import Client, Pending

# nobody serves it: that the refusal came back tells that everything before it has arrived
_NOBODY = 2**64 - 1


def bare(error: BaseException) -> BaseException:
    """An error that is to be kept, without the frames that it went through.

    They hold what the functions of the user's stack have, handles among it, for as long as it is
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
    """One owner of objects, dialled on first use. A connection that is lost stays lost.

    What the owner took back when it lost sight of us may be with others by now, so a new connection
    begins anew, with handles of its own.
    """

    def __init__(self, store: Store, ident: str, urls: Sequence[str]) -> None:
        self.ident = ident
        self._store = store
        #: where it may be reached, best first
        self.urls = urls
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._failed = False
        self._cause: BaseException | None = None
        self._page: Page | None = None
        # does what must not hold up the threads of the user or the handler, in order
        self._courier = SerialExecutor(f"fiber-courier-{ident}", expected=PeerLostError)

    @property
    def is_lost(self) -> bool:
        """True once it is gone, or could not be reached."""
        return self._failed or (self._client is not None and self._client.lost)

    @property
    def is_near(self) -> bool:
        """True where it runs on this host."""
        return self._client is not None and self._client.peer.host == self._store.host

    @property
    def is_local(self) -> bool:
        """True where it is reached as only processes of one host are."""
        url = "" if self._client is None else self._client.url
        return url.partition("://")[0].rpartition("@")[2] in ("unix", "ipc")

    @property
    def keeps(self) -> bool:
        """True where what was sent arrives whatever becomes of this process: the kernel has it."""
        return self._client is not None and self._client.keeps

    def lost(self, what: str) -> PeerLostError:
        """What its loss means for a user of one of its objects."""
        if self._client is None:
            msg = f"the process that this {what} lives in, {self.ident}, cannot be reached"
        else:
            peer = self._client.peer
            msg = f"the process that this {what} lives in is gone: {peer.pid} on {peer.host}"
        error = PeerLostError(msg)
        error.__cause__ = self._cause
        return error

    # -- messages

    def call(self, target: int, segments: Sequence[Buffer]) -> Pending:
        """Send what is answered.

        Raises:
            PeerLostError: it is gone.
        """
        return self._reach().call(target, segments)

    def cast(self, target: int, segments: Sequence[Buffer]) -> None:
        """Send what is not answered.

        Raises:
            PeerLostError: it is gone.
        """
        self._reach().cast(target, segments)

    def listen(self, target: int, action: Callable[[Message], None]) -> None:
        """Have what it says about one of its objects told, on the handler thread.

        Raises:
            PeerLostError: it is gone.
        """
        self._reach().on_cast(target, action)

    def forget(self, target: int) -> None:
        """Undo :meth:`listen`."""
        if self._client is not None:
            self._client.forget(target)

    def void(self, target: int, ticket: int) -> None:
        """A pickle of one of its objects is loaded no more; callable from finalizers."""
        if self.is_lost:
            return
        message = protocol.VOID.pack(Op.VOID, ticket)
        action = functools.partial(self.cast, target, [message])
        if not self.soon(action):
            # retired meanwhile, and there may be no other use for the connection
            self._store.call_soon(functools.partial(self._store.errand, action))

    def soon(self, action: Callable[[], Any]) -> bool:
        """Have something done on the courier's thread; False where it has ended."""
        return self._courier.submit(action)

    def sync(self, timeout: float | None = None) -> bool:
        """Wait until everything sent before has arrived, or it is gone; False if not in time."""
        if self._client is None:
            return True
        try:
            return self.call(_NOBODY, ()).wait(timeout)
        except PeerLostError:
            return True

    def deliver(self) -> None:
        """Wait until everything sent before arrives whatever becomes of this process."""
        if not self.keeps:
            self.sync()

    # -- progress of readers

    def slot(self) -> Slot:
        """Where a reader of one of its lanes notes what it hands out."""
        with self._lock:
            if self._page is None and self.is_near:
                self._page = self._store.new_page()
            return Slot.private() if self._page is None else self._page.slot()

    def release(self, slot: Slot) -> None:
        """A reader is done with its slot."""
        with self._lock:
            if self._page is not None:
                self._page.release(slot)

    def page(self) -> tuple[bytes, bytes]:
        """Mark and name of the page of the slots."""
        page = self._page
        return (b"", b"") if page is None else (page.mark, page.name.encode())

    # -- the end

    def drain(self) -> None:
        """Wait until everything for the courier is done."""
        self._courier.drain()

    def retire(self) -> None:
        """It is used no more: end the courier, without waiting for it."""
        self._courier.end()
        if self._page is not None:
            self._page.close()

    def close(self) -> None:
        """End the courier and wait for it; idempotent."""
        self.retire()
        self._courier.close()

    def _reach(self) -> Client:
        client = self._client
        if client is None:
            with self._lock:
                client = self._client or self._dial()
        return client

    def _dial(self) -> Client:
        for url in () if self._failed else self._store.best(self.urls):
            try:
                self._client = self._store.client(url)
            except TransportError as error:
                self._cause = bare(error)
            else:
                self._store.watch(self, self._client)
                return self._client
        self._failed = True
        raise self.lost(what="object")
