"""Side of all other processes of a managed object: method calls that are sent and awaited."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fiber._base.entry_points import load_object
from fiber._objects import protocol
from fiber._objects.handle import encode
from fiber._objects.managed import calls
from fiber._objects.managed.calls import Answer
from fiber._objects.protocol import Op
from fiber._objects.queue.messages import Item
from fiber._objects.remote_object import RemoteObject
from fiber._wire import fork
from fiber.exceptions import PeerLostError, TransportError

if TYPE_CHECKING:
    from fiber._objects.address import Address
    from fiber._objects.managed.channel import Channel
    from fiber._objects.owner_connection import Owner
    from fiber._objects.store import Store
    from fiber._wire.client import PendingCall

_numbers = itertools.count(1)
_current = threading.local()


class Caller:
    """Calls that run in order: those of one thread, or the asynchronous ones to one object.

    When it is collected, the processes that have a thread for it end that.
    """

    def __init__(self) -> None:
        #: its number in this process
        self.number = next(_numbers)
        # channels by owner, None for one that has none
        self._channels: dict[Owner, Channel | None] = {}
        self._opening: set[Owner] = set()
        # functions that end its threads: by owner and target, or by the threads of this process
        self._threads: dict[Any, Callable[[], Any]] = {}
        self._finalizer = weakref.finalize(self, _end_threads, self._threads)
        self._finalizer.atexit = False

    def add_remote_thread(self, owner: Owner, target: int, store: Store) -> None:
        """Note that an owner has a thread for it, to be ended by a message to a target."""
        if (owner, target) not in self._threads:
            message = calls.NUMBERED.pack(calls.ENDED, self.number)
            end = functools.partial(_cast_soon, store, owner, target, message)
            self._threads[owner, target] = end

    def channel(self, remote: RemoteReferent, store: Store) -> Channel | None:
        """The channel to the process of an object, opened if need be; None where there can be none.

        Raises:
            PeerLostError: that process, or the object, is gone.
        """
        owner = remote.owner
        if owner not in self._channels:
            self._opening.add(owner)
            try:
                # by name: it is for processes of one host
                opened = load_object("fiber._objects.managed.channel:opened")
                channel = self._channels[owner] = opened(store, remote, self.number)
            finally:
                self._opening.discard(owner)
            if channel is not None:
                self._threads[owner, None] = channel.close
        return self._channels[owner]

    def is_busy(self, owner: Owner) -> bool:
        """True where this thread is in the midst of a call through its channel, or opens that."""
        channel = self._channels.get(owner)
        return owner in self._opening or (channel is not None and channel.is_busy)

    def add_local_thread(self, end_soon: Callable[[int], object]) -> None:
        """Note that this process has a thread for it, which a call with its number ends."""
        self._threads.setdefault(end_soon, functools.partial(end_soon, self.number))


def _end_threads(threads: dict[Any, Callable[[], Any]]) -> None:
    for end in threads.values():
        end()


def current_caller() -> Caller:
    """The caller that this thread is."""
    found: Caller | None = getattr(_current, "caller", None)
    if found is None:
        found = _current.caller = Caller()
    return found


class RemoteReferent(RemoteObject):
    """A managed object of another process; one for each object, shared by its proxies."""

    @functools.cached_property
    def async_caller(self) -> Caller:
        """The caller of this process's asynchronous calls to the object."""
        return Caller()

    def call_method(self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any]) -> Any:
        """Call a method and wait for its value; in order with this thread's other calls.

        Raises:
            PeerLostError: the object's process is gone, or the object is.
            Exception: that of the method, or of pickling its arguments.
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_forked_child():
            fork.check()
        caller = current_caller()
        if caller.is_busy(self._owner):
            # by a handler of a signal, or a finalizer: it cannot wait for the call that it interrupts
            caller, channel = Caller(), None
        else:
            channel = caller.channel(self, self._store)
        if channel is not None:
            return self._call_through(channel, encode((name, args, kwds)))
        call = self.begin(name, args, kwds, caller)
        try:
            call.wait()
        except BaseException:
            # interrupted: the remote thread may wait long, and this one go on to other calls
            if caller is current_caller():
                del _current.caller
            call.abandon()
            raise
        return call.value()

    def _call_through(self, channel: Channel, item: Item) -> Any:
        try:
            outcome = channel.call(self.target, item)
        except EOFError as error:
            raise self.loss_error(error) from error
        except BaseException:
            # as above
            del _current.caller
            channel.close()
            raise
        if outcome[0] is Answer.GONE:
            raise self.loss_error(PeerLostError())
        return calls.value(outcome)

    def begin(
        self, name: str, args: tuple[Any, ...], kwds: Mapping[str, Any], caller: Caller
    ) -> Call:
        """Send a call.

        Raises:
            Exception: that of pickling its arguments.
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_forked_child():
            fork.check()
        return Call(self, encode((name, args, kwds), auth_domain=self.auth_domain), caller)

    def wait_for_releases(self) -> None:
        """Wait until the references that were dropped before are reported to the owner."""
        self._owner.drain()
        # calls go another way, and may be there before
        self._owner.sync()

    # -- for calls

    def add_remote_thread(self, caller: Caller, target: int) -> None:
        """Note that the owner has a thread for a caller, to be ended by a message to a target."""
        caller.add_remote_thread(self._owner, target, self._store)

    def confirm_loaded(self, target: int, number: int) -> None:
        """Report that an answer with references was unpickled."""
        message = calls.NUMBERED.pack(calls.LOADED, number)
        _cast_soon(self._store, self._owner, target, message)

    def send_abandoned(self, number: int) -> None:
        """Report that a call is not waited for any more."""
        message = calls.NUMBERED.pack(calls.ABANDONED, number)
        _cast_soon(self._store, self._owner, self.target, message)

    def drop_created(self, address: Address) -> None:
        """Drop the reference to a created object that gets no proxy."""
        message = protocol.DETACH.pack(Op.DETACH, 0)
        _cast_soon(self._store, self._owner, address.target, message)

    def void_references(self, item: Item) -> None:
        """Drop the references in an item that will not be loaded."""
        self._store.void_references(calls.references(item))


def _cast_soon(store: Store, owner: Owner, target: int, message: bytes) -> None:
    """Send a message without answer, later; callable from finalizers."""
    if owner.is_lost:
        return
    action = functools.partial(owner.cast, target, [message])
    if not owner.submit(action):
        # retired meanwhile, and its connection may have no other use
        store.call_soon(functools.partial(store.run_in_background, action))


class Call:
    """A call that was sent to another process."""

    def __init__(self, remote: RemoteReferent, item: Item, caller: Caller) -> None:
        self._remote = remote
        self._caller = caller
        self._pending: PendingCall | None = None
        self._error: PeerLostError | None = None
        self._item = item if calls.references(item) else None
        try:
            self._pending = remote.call(calls.call(caller.number, item))
        except PeerLostError as error:
            self._error = remote.loss_error(error)
            self._void()

    @property
    def done(self) -> bool:
        """True once it has an outcome, or is lost."""
        return self._pending is None or self._pending.done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its outcome; False when ``timeout`` seconds have passed without."""
        return self._pending is None or self._pending.wait(timeout)

    def then(self, action: Callable[[], Any]) -> None:
        """Call ``action`` once it is done: on the handler thread, or now."""
        if self._pending is None:
            action()
        else:
            self._pending.add_done_callback(lambda _: action())

    def value(self) -> Any:
        """Value of a call that is :attr:`done`; to be called once.

        Raises:
            PeerLostError: the object's process is gone, or the object is.
            Exception: that of the method.
        """
        if self._pending is None:
            assert self._error is not None
            raise self._error
        try:
            outcome, target = calls.read_answer(self._pending.result())
        except TransportError as error:
            self._void()
            raise self._remote.loss_error(error) from error
        self._remote.add_remote_thread(self._caller, target)
        try:
            return calls.value(outcome)
        finally:
            if calls.references(outcome[1]):
                self._remote.confirm_loaded(target, self._pending.number)

    def discard(self, unread: str = "") -> None:
        """Drop the outcome unread; replaces the action of :meth:`then`, callable from finalizers.

        Args:
            unread: the method's name, to log a failure; empty to log none.
        """
        if self._pending is not None:
            discard = functools.partial(_discard_outcome, self._remote, self._caller, unread)
            self._pending.add_done_callback(discard)

    def abandon(self) -> None:
        """Give up waiting: the owner rolls back what the call may still do."""
        if self._pending is not None:
            self._remote.send_abandoned(self._pending.number)
        self.discard()

    def _void(self) -> None:
        """Drop the references in its arguments, which will not be unpickled."""
        if self._item is not None:
            self._remote.void_references(self._item)


def _discard_outcome(
    remote: RemoteReferent, caller: Caller, unread: str, pending: PendingCall
) -> None:
    """On the handler thread, or now: drop the references in an answer."""
    try:
        (kind, item), target = calls.read_answer(pending.result())
    except TransportError:
        # it was not made, or is lost with its process
        return
    remote.add_remote_thread(caller, target)
    calls.log_failure(kind, unread)
    if kind is Answer.CREATED:
        remote.drop_created(calls.value((kind, item)).address)
    elif calls.references(item):
        remote.void_references(item)
        remote.confirm_loaded(target, pending.number)
