"""The connection to a process whose objects this one uses."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fiber.exceptions import PeerLostError, TransportError
from fiber.objects import protocol
from fiber.objects.courier import Courier
from fiber.objects.progress import Page, Slot
from fiber.objects.protocol import Op
from fiber.transport.wire import Buffer, Message

if TYPE_CHECKING:
    from fiber.objects.store import Store
    from fiber.transport.client import Client, Pending

# nobody serves it: that the refusal came back tells that everything before it has arrived
_NOBODY = 2**64 - 1


class Owner:
    """One owner of objects. A connection that is lost stays lost.

    What the owner took back when it lost sight of us may be with others by now, so a new connection
    begins anew, with handles of its own.
    """

    def __init__(self, store: Store, ident: str, urls: Sequence[str]) -> None:
        self.ident = ident
        self._store = store
        self._page: Page | None = None
        self._lock = threading.Lock()
        self._cause: BaseException | None = None
        self._client: Client | None = None
        for url in urls:
            try:
                self._client = store.client(url)
                break
            except TransportError as error:
                self._cause = error
        #: does what must not hold up the threads of the user or the handler, in order
        self.courier = Courier(f"fiber-courier-{ident}")

    @property
    def is_lost(self) -> bool:
        """True once it is gone."""
        return self._client is None or self._client.lost

    @property
    def is_near(self) -> bool:
        """True where it runs on this host."""
        return self._client is not None and self._client.peer.host == self._store.host

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
        """Have what the owner says about one of its objects told, on the handler thread."""
        if self._client is not None:
            self._client.on_cast(target, action)

    def forget(self, target: int) -> None:
        """Undo :meth:`listen`."""
        if self._client is not None:
            self._client.forget(target)

    def void(self, target: int, ticket: int) -> None:
        """A pickle of one of its objects is loaded no more."""
        message = protocol.VOID.pack(Op.VOID, ticket)
        self.courier.submit(functools.partial(self.cast, target, [message]))

    def sync(self) -> None:
        """Wait until everything sent before has arrived, or it is gone."""
        try:
            self.call(_NOBODY, ()).wait()
        except PeerLostError:
            return

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

    def close(self) -> None:
        """End its thread; idempotent."""
        self.courier.close()
        if self._page is not None:
            self._page.remove()

    def _reach(self) -> Client:
        if self._client is None:
            raise PeerLostError(str(self.lost("object")))
        return self._client
