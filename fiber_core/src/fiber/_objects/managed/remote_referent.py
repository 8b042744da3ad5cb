"""A managed object in other processes than its own: calls of its methods, made and awaited."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fiber._objects import protocol
from fiber._objects.handle import encode
from fiber._objects.managed import calls
from fiber._objects.managed.calls import Answer
from fiber._objects.protocol import Op
from fiber._objects.queue.messages import Item
from fiber._objects.remote import Remote
from fiber._wire import fork
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.address import Address
    from fiber._objects.managed.caller_threads import Strands
    from fiber._objects.owner import Owner
    from fiber._objects.store import Store
    from fiber._wire.client import Pending

_numbers = itertools.count(1)
_threads = threading.local()


class Strand:
    """Calls that are made in order: those of one thread, or the asynchronous ones to one object.

    The processes that serve it are told when it is collected.
    """

    def __init__(self) -> None:
        #: its number in this process
        self.number = next(_numbers)
        # by owner and target, or by whose threads it has here: what tells that no call will follow
        self._served: dict[Any, Callable[[], Any]] = {}
        self._ending = weakref.finalize(self, _end, self._served)
        self._ending.atexit = False

    def served(self, owner: Owner, target: int, store: Store) -> None:
        """An owner has a thread for it, and is to be told at a target when no call will follow."""
        if (owner, target) not in self._served:
            message = calls.NUMBERED.pack(calls.ENDED, self.number)
            tell = functools.partial(_tell, store, owner, target, message)
            self._served[owner, target] = tell

    def served_here(self, strands: Strands) -> None:
        """This very process has a thread for it."""
        self._served.setdefault(strands, functools.partial(strands.end_soon, self.number))


def _end(served: dict[Any, Callable[[], Any]]) -> None:
    for tell in served.values():
        tell()


def strand_of_thread() -> Strand:
    """The strand of this thread's calls."""
    found: Strand | None = getattr(_threads, "strand", None)
    if found is None:
        found = _threads.strand = Strand()
    return found


class RemoteReferent(Remote):
    """One for each object and process."""

    @functools.cached_property
    def strand(self) -> Strand:
        """The strand of this process's asynchronous calls to the object."""
        return Strand()

    def call_method(self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any]) -> Any:
        """Call a method and wait for its value; in order with this thread's other calls.

        Raises:
            PeerLostError: the object's process is gone, or the object is.
            Exception: what the method raised, or pickling its arguments.
        """
        call = self.begin(name, args, kwds, strand_of_thread())
        try:
            call.wait()
        except BaseException:
            # interrupted: the thread there may wait for long, and this one may go on to other calls
            del _threads.strand
            call.abandon()
            raise
        return call.value()

    def begin(
        self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any], strand: Strand
    ) -> Call:
        """Send a call.

        Raises:
            Exception: what pickling its arguments raised.
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_stranger():
            fork.check()
        return Call(self, encode((name, args, kwds), realm=self.realm), strand)

    def settle(self) -> None:
        """Wait until the owner was told of what was let go of before."""
        self._owner.drain()

    # -- for calls

    def served(self, strand: Strand, target: int) -> None:
        """The owner has a thread for a strand, and answers questions about it at a target."""
        strand.served(self._owner, target, self._store)

    def loaded(self, target: int, number: int) -> None:
        """A laden answer was unpickled."""
        message = calls.NUMBERED.pack(calls.LOADED, number)
        _tell(self._store, self._owner, target, message)

    def abandoned(self, number: int) -> None:
        """Nobody waits for a call any more."""
        message = calls.NUMBERED.pack(calls.ABANDONED, number)
        _tell(self._store, self._owner, self.target, message)

    def let_go(self, address: Address) -> None:
        """A managed object that was made for us has no proxy and gets none."""
        message = protocol.DETACH.pack(Op.DETACH, 0)
        _tell(self._store, self._owner, address.target, message)

    def void_all(self, item: Item) -> None:
        """References in an item that nobody will load."""
        self._store.void_all(calls.tickets(item))


def _tell(store: Store, owner: Owner, target: int, message: bytes) -> None:
    """Send what is not answered, later; callable from finalizers."""
    if owner.is_lost:
        return
    action = functools.partial(owner.cast, target, [message])
    if not owner.soon(action):
        # given up meanwhile, and its connection is used by nobody else
        store.call_soon(functools.partial(store.errand, action))


class Call:
    """A call that was sent."""

    def __init__(self, remote: RemoteReferent, item: Item, strand: Strand) -> None:
        self._remote = remote
        self._strand = strand
        self._pending: Pending | None = None
        self._error: PeerLostError | None = None
        self._item = item if calls.tickets(item) else None
        try:
            self._pending = remote.call(calls.call(strand.number, item))
        except PeerLostError as error:
            self._error = remote.loss(error)
            self._void()

    @property
    def done(self) -> bool:
        """True once its outcome is here, or never will be."""
        return self._pending is None or self._pending.done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its outcome; False when ``timeout`` seconds have passed without."""
        return self._pending is None or self._pending.wait(timeout)

    def then(self, action: Callable[[], Any]) -> None:
        """Have ``action`` called once it is done, on the handler thread or at once."""
        if self._pending is None:
            action()
        else:
            self._pending.then(lambda _: action())

    def value(self) -> Any:
        """What it returned, once it is :attr:`done`; to be asked once.

        Raises:
            PeerLostError: the object's process is gone, or the object is.
            Exception: what the method raised.
        """
        if self._pending is None:
            assert self._error is not None
            raise self._error
        try:
            outcome, target = calls.read_answer(self._pending.result())
        except TransportError as error:
            self._void()
            raise self._remote.loss(error) from error
        self._remote.served(self._strand, target)
        try:
            return calls.value(outcome)
        finally:
            if calls.tickets(outcome[1]):
                self._remote.loaded(target, self._pending.number)

    def discard(self, unread: str = "") -> None:
        """Nobody will ask for its value; callable from finalizers, and ends :meth:`then`.

        Args:
            unread: the method's name, where it is to be told if it failed.
        """
        if self._pending is not None:
            forget = functools.partial(_discard, self._remote, self._strand, unread)
            self._pending.then(forget)

    def abandon(self) -> None:
        """Nobody waits for it any more: what it would have got is for others."""
        if self._pending is not None:
            self._remote.abandoned(self._pending.number)
        self.discard()

    def _void(self) -> None:
        """Nobody unpickles its arguments, or nobody is left who did."""
        if self._item is not None:
            self._remote.void_all(self._item)


def _discard(remote: RemoteReferent, strand: Strand, unread: str, pending: Pending) -> None:
    """On the handler thread, or at once: let go of what an answer holds."""
    try:
        (word, item), target = calls.read_answer(pending.result())
    except TransportError:
        # it was not made, or is lost with its process, and what it held with it
        return
    remote.served(strand, target)
    calls.tell_failure(word, unread)
    if word is Answer.MADE:
        remote.let_go(calls.value((word, item)).address)
    elif calls.tickets(item):
        remote.void_all(item)
        remote.loaded(target, pending.number)
