"""A shared object as another process than its owner's sees it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._objects import protocol
from fiber._objects.address import Address, Shape
from fiber._objects.owner import Owner, bare
from fiber._objects.protocol import Op
from fiber._objects.references import NO_TICKET
from fiber._wire.frames import Buffer, Message
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.store import Store
    from fiber._wire.client import Pending

#: no progress to be seen: slot, mark and name of its page
NO_PAGE = (-1, b"", b"")


class Remote:
    """One for each object and process; its handles share it. Subclasses do what a kind is for."""

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._address = address
        self._shape = address.shape
        self.target = address.target
        # also held while other processes are told of ends, so that they hear it in order
        self._lock = threading.RLock()
        # True once the owner was told that nobody holds it here; a new one takes its place
        self._done = False
        self._holds = [0] * self._shape.ends
        self._attached: set[int] = set()

    @property
    def shape(self) -> Shape:
        """What it is made of."""
        return self._shape

    @property
    def address(self) -> Address:
        """What is pickled in its place."""
        return self._address

    @property
    def realm(self) -> str | None:
        """The realm of its owner, where that is no process of this run."""
        return self._address.realm

    def address_in(self, realm: str | None) -> Address:
        """What processes of a realm are told, of the run where it is None.

        Raises:
            RuntimeError: they cannot reach its owner.
        """
        if realm not in (None, self.realm):
            msg = (
                f"a {self._shape.name} of another process cannot be sent to a program with another "
                "authkey, which cannot reach that process; send it from there, or what is in it"
            )
            raise RuntimeError(msg)
        return self._address

    @property
    def owner(self) -> Owner:
        """The connection to its owner."""
        return self._owner

    @property
    def is_near(self) -> bool:
        """True where its owner runs on this host."""
        return self._owner.is_near

    @property
    def is_lost(self) -> bool:
        """True once its owner is gone."""
        return self._owner.is_lost

    # -- for handles

    def hold(self, end: int, ticket: int = NO_TICKET) -> bool:
        """There is one more handle of an end here; False where the last one has just gone."""
        with self._lock:
            if self._done:
                return False
            self._holds[end] += 1
            if end in self._attached and ticket == NO_TICKET:
                return True
            try:
                self._owner.listen(self.target, self.on_word)
                self._attach(end, ticket)
            except PeerLostError as error:
                self._attach_in_vain(end)
                self.fail(bare(error))
            return True

    def drop(self, end: int) -> None:
        """A handle of an end was closed."""
        self.soon(functools.partial(self._drop, end))

    # a finalizer may call it: the courier takes no lock
    drop_soon = drop

    def issue(self, ticket: int, end: int, uses: int) -> None:
        """A pickle of an end is on its way."""
        message = protocol.TICKET.pack(Op.TICKET, end, ticket, uses)
        self.soon(functools.partial(self.cast, [message]))

    def void(self, ticket: int) -> None:
        """A pickle of an end is loaded no more."""
        self._owner.void(self.target, ticket)

    # -- for subclasses and their parts

    def call(self, segments: Sequence[Buffer]) -> Pending:
        """Send what is answered."""
        return self._owner.call(self.target, segments)

    def cast(self, segments: Sequence[Buffer]) -> None:
        """Send what is not answered."""
        self._owner.cast(self.target, segments)

    def soon(self, action: Callable[[], Any]) -> None:
        """Have something done on another thread, in order."""
        self._owner.soon(action)

    def sync(self) -> None:
        """Wait until all that was sent is with the owner."""
        self._owner.sync()

    def deliver(self) -> None:
        """Wait until all that was sent arrives whatever becomes of this process."""
        self._owner.deliver()

    def call_later(self, delay: float, action: Callable[[], Any]) -> None:
        """Have something done in a moment, on the handler thread."""
        self._store.call_later(delay, action)

    def loss(self, error: BaseException) -> PeerLostError:
        """What an error of the connection means for users."""
        if self.is_lost or not isinstance(error, PeerLostError):
            lost = self._owner.lost(self._shape.name)
            lost.__cause__ = lost.__cause__ or error
            return lost
        msg = f"the {self._shape.name} no longer exists in its process; its last holder let it go"
        return PeerLostError(msg)

    # -- for subclasses

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the object is; no lock is held, and none may be waited for."""

    def on_word(self, message: Message) -> None:
        """On the handler thread: the owner says something unasked."""

    def flush(self) -> None:
        """This process ends: send all that was put."""

    def give_back(self) -> None:
        """This process ends: what was not handed out goes back."""

    def ending(self, code: int) -> None:
        """This process ends by itself, with an exit code."""

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        """The first handle of an end is here; slot, mark and page of its reader's progress."""
        return NO_PAGE

    def _heard(self, slot: int, seen: bool) -> None:
        """On the handler thread: the owner has noted that we hold an end."""

    def _close(self, end: int) -> None:
        """On the courier: the last handle of an end is gone."""

    def _stays(self) -> bool:
        """On the courier: True where the next handle is to find the object as it is."""
        return False

    # -- inside

    def _attach(self, end: int, ticket: int) -> None:
        slot, mark, page = NO_PAGE
        if end not in self._attached:
            slot, mark, page = self._open(end)
            self._attached.add(end)
        head = protocol.ATTACH.pack(Op.ATTACH, end, ticket, slot, mark)
        self.call([head, page]).then(functools.partial(self._answered, slot))

    def _answered(self, slot: int, pending: Pending) -> None:
        try:
            (seen,) = protocol.read(protocol.ATTACHED, pending.result())
        except TransportError as error:
            self.fail(error)
        else:
            self._heard(slot, bool(seen))

    def _attach_in_vain(self, end: int) -> None:
        if end not in self._attached:
            self._open(end)
            self._attached.add(end)

    def _drop(self, end: int) -> None:
        """On the courier: a handle is gone, perhaps the last one."""
        with self._lock:
            self._holds[end] -= 1
            if self._holds[end] or end not in self._attached:
                return
            self._attached.discard(end)
            self._close(end)
            try:
                self.cast([protocol.DETACH.pack(Op.DETACH, end)])
            finally:
                if not self._attached and not self._stays():
                    self._forget()

    def _forget(self) -> None:
        """With the lock held: there is no handle, and the next one is to find another object."""
        self._done = True
        self._store.forget_remote(self)
