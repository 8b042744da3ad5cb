"""Handles: one end of a shared object held for the user, and its pickling.

The protocols here are what a handle calls, the same at the owner and in other processes.
"""

from __future__ import annotations

import pickle
import secrets
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base import values
from fiber._objects import store
from fiber._objects.address import ANY, LASTING, Address, Shape
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.queue.messages import Item, ItemWithReferences, Reference
from fiber._wire import codec
from fiber._wire.codec import MessageEnvelope, Stream
from fiber._wire.handshake import Credentials

if TYPE_CHECKING:
    from fiber._objects.auth_domain import AuthDomain


class Reader(Protocol):
    """The reading side of a direction."""

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item.

        Raises:
            queue.Empty: there is none (in time).
            EOFError: there will be none.
        """

    def poll(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would return or raise EOFError; False when none came in time."""

    def fileno(self) -> int:
        """A descriptor that is readable while :meth:`take` would return or raise EOFError."""


class Writer(Protocol):
    """The writing side of a direction."""

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Put an item.

        Raises:
            queue.Full: there is no room (in time).
            BrokenPipeError: no reader is left.
        """

    def flush(self) -> None:
        """Wait until all items have arrived at the owner, or it is lost."""

    def deliver(self) -> None:
        """Wait until all items arrive even if this process dies."""

    def abandon(self) -> None:
        """Do not wait for items that were put when this process exits."""


class SharedObject(Protocol):
    """An object of any kind, at its owner or in another process, as its handles use it."""

    @property
    def shape(self) -> Shape:
        """Its ends and directions."""

    @property
    def address(self) -> Address:
        """Address that is pickled."""

    @property
    def auth_domain(self) -> str | None:
        """Name of the auth domain that uses it; None within one run."""

    def address_in(self, auth_domain: str | None) -> Address:
        """Address for processes of an auth domain, of this run if None."""

    def hold(self, end: int, reference_id: int = 0) -> bool:
        """Count one more handle of an end; False where the last one was just dropped."""

    def drop(self, end: int) -> None:
        """Count a handle that was closed."""

    def drop_soon(self, end: int) -> None:
        """Count a handle that was collected; callable from finalizers."""

    def issue(self, reference_id: int, end: int, uses: int) -> None:
        """Count the reference of a new pickle."""

    def void(self, reference_id: int) -> None:
        """Void the reference of a pickle that will not be loaded; callable from finalizers."""


class ChannelObject(SharedObject, Protocol):
    """A queue or pipe."""

    def reader(self, direction: int) -> Reader:
        """The reading side of a direction."""

    def writer(self, direction: int) -> Writer:
        """The writing side of a direction."""

    def size(self, direction: int) -> int:
        """Items in a direction."""

    def takes_memory(self) -> bool:
        """True where items in memory may be put."""


class TaskQueueObject(ChannelObject, Protocol):
    """A queue of tasks."""

    def finish(self, reader: object) -> bool:
        """Count a finished task of a reader; False where all were finished."""

    def join(self) -> None:
        """Wait until all tasks are done."""


# reference ids by envelope, and by object for pickles without an envelope
_ids_by_envelope: weakref.WeakKeyDictionary[Any, dict[Any, int]] = weakref.WeakKeyDictionary()
_lasting_ids: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()
#: by class, names of the attributes that its handles have had once they were attached
_own_names: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


@values.frozen
class AddressWithCredentials:
    """An address for processes of this run that may not know its auth domain, which it brings."""

    address: Address
    auth_domain: AuthDomain

    def __reduce__(self) -> Any:
        domain = self.auth_domain
        return learn_address, (self.address, domain.credentials.to_json(), (*domain.neighbours,))


def learn_address(
    address: Address, credentials: dict[str, Any], neighbours: Iterable[str]
) -> Address:
    """Unpickle an address and learn its auth domain."""
    store.current().auth_domains.learn(Credentials.from_json(credentials), neighbours)
    return address


class Handle:
    """Handle of one end of an object; holds it until it is closed or collected."""

    _object: SharedObject
    _end: int
    #: name of the auth domain that loads what is sent, if the object does not know it
    _auth_domain: str | None = None

    def _attach(self, shared: SharedObject, end: int) -> None:
        """Become the handle of an end that was held for it."""
        self._object = shared
        self._end = end
        self._finalizer = weakref.finalize(self._keeper(), shared.drop_soon, end)
        self._finalizer.atexit = False
        self._open()

    def _keeper(self) -> object:
        """Object during whose life the end is held."""
        return self

    def _open(self) -> None:
        """For subclasses: use the object, which is attached now."""

    def _release(self) -> None:
        """Drop the end; idempotent."""
        if self._finalizer.detach() is not None:
            self._object.drop(self._end)

    def _address(self) -> Any:
        """Address for the pickle that is being made.

        Raises:
            RuntimeError: that is for a process which belongs to no run.
        """
        envelope = codec.envelope()
        known = self._receiving_domain()
        if envelope is None and known is None and get_spawning_popen() is not None:
            # it would start, fail when it loads this, and be waited for by those that use it together
            msg = (
                f"an object of fiber ({type(self).__name__}) cannot be given to a process of "
                "multiprocessing, which cannot reach it; start that process with fiber too "
                "(fiber.Process, fiber.get_context())"
            )
            raise RuntimeError(msg)
        address = self._object.address_in(_auth_domain_of(envelope))
        if known is not None and envelope is not None and _auth_domain_of(envelope) is None:
            # sent between processes of this run only
            return AddressWithCredentials(address, store.current().auth_domains.get(known))
        return address

    def __reduce__(self) -> Any:
        return type(self)._load, (  # noqa: SLF001 - its own
            self._address(),
            self._end,
            self._reference_id(),
            *self._state(),
        )

    @classmethod
    def _load(cls, address: Address, end: int, reference_id: int, *state: Any) -> Handle:
        """Handle that is unpickled."""
        handle = cls.__new__(cls)
        handle._restore(*state)  # noqa: SLF001 - its own
        handle._attach(store.current().hold(address, end, reference_id), end)  # noqa: SLF001 - its own
        return handle

    def _receiving_domain(self) -> str | None:
        """Name of the auth domain that loads what is sent; None for the run."""
        return self._auth_domain or self._object.auth_domain

    def _state(self) -> tuple[Any, ...]:
        """For subclasses: the arguments of :meth:`_restore`."""
        return ()

    def _restore(self, *state: Any) -> None:
        """For subclasses: restore the values of :meth:`_state`; called before :meth:`_open`."""

    def _reference_id(self) -> int:
        """Reference id for the pickle that is being made.

        Its reference lasts as long as the pickle's envelope: an item of a queue until it is loaded
        or dropped, a process until each of its processes has loaded it or it has ended, a call of a
        pool until it is done, an item of a call that grows until it has its outcome. A pickle that the user makes may be loaded at any time, so its
        reference lasts.
        """
        shared, end = self._object, self._end
        envelope = codec.envelope()
        if isinstance(envelope, MessageEnvelope):
            return issue_for_message(self, shared, end, envelope)
        if envelope is None:
            lasting = _lasting_ids.setdefault(shared, {})
            if end not in lasting:
                lasting[end] = issue(shared, end, LASTING)
            return lasting[end]
        references = _ids_by_envelope.setdefault(envelope, {})
        key = (id(self), id(shared), end)
        if key not in references:
            references[key] = issue_until_released(shared, end, envelope)
        return references[key]


class ExtensibleHandle(Handle):
    """Handle of a class that users derive theirs from, such as a queue that counts its items.

    What such a class sets after ``super().__init__()`` is sent, too. It may extend ``__getstate__`` and
    ``__setstate__``, as those of the stdlib's classes.
    """

    def _attach(self, shared: SharedObject, end: int) -> None:
        super()._attach(shared, end)
        # those of an object of another process are fewer
        known = _own_names.get(type(self), frozenset())
        if not known >= vars(self).keys():
            _own_names[type(self)] = known | vars(self).keys()

    def __reduce__(self) -> Any:
        return *super().__reduce__(), self.__getstate__()

    def __getstate__(self) -> Any:
        """Attributes that were added; None for none."""
        own = _own_names[type(self)]
        return {name: value for name, value in vars(self).items() if name not in own} or None

    def __setstate__(self, state: Any) -> None:
        """Set what :meth:`__getstate__` returned where this was pickled."""
        vars(self).update(state or {})


def issue(shared: SharedObject, end: int, uses: int) -> int:
    """Count the reference of a new pickle, with a new id, which is returned."""
    reference_id = secrets.randbits(63) | 1
    shared.issue(reference_id, end, uses)
    return reference_id


def issue_for_message(
    original: object, shared: SharedObject, end: int, envelope: MessageEnvelope
) -> int:
    """Id of the reference that a message's pickle of an object has; the object lives as long as that is made."""
    made = envelope.references.get(id(original))
    if made is None:
        reference_id = issue(shared, end, envelope.uses)
        address = shared.address_in(envelope.auth_domain)
        made = address.ident, address.urls, address.target, reference_id
        envelope.refer(id(original), made, _void_references)
    return made[3]


def issue_until_released(shared: SharedObject, end: int, envelope: Any) -> int:
    """As :func:`issue`, for as long as the pickle's envelope: a process, or a call."""
    reference_id = issue(shared, end, getattr(envelope, "processes", ANY))
    # once: when the envelope is released, or collected before it was sent
    void = weakref.finalize(envelope, shared.void, reference_id)
    void.atexit = False
    envelope.on_release(void)
    return reference_id


def _auth_domain_of(envelope: Any) -> str | None:
    return envelope.auth_domain if isinstance(envelope, MessageEnvelope) else None


def encode(value: Any, uses: int = 1, *, auth_domain: str | None = None) -> Item:
    """Pickle a value as an item.

    Args:
        value: any picklable value.
        uses: number of times it will be loaded; :data:`ANY` for any, until it is dropped.
        auth_domain: name of the auth domain that will load it; None for this run.

    Raises:
        Exception: that of pickling it.
    """
    envelope = MessageEnvelope(uses, auth_domain)
    try:
        pickled = codec.pickled(value, envelope)
    except BaseException:
        # of what was pickled before the error: the end of this process would wait until it is loaded
        envelope.void()
        raise
    if envelope.references:
        return ItemWithReferences.of(envelope.references.values(), pickled)
    return pickled


def encode_into(
    make: Callable[[], Stream], value: Any, *, auth_domain: str | None = None
) -> tuple[Stream, list[Reference]]:
    """Pickle a value into a new stream, in pieces as they are made.

    Args:
        make: makes a stream; it may be called a second time.
        value: any picklable value.
        auth_domain: as of :func:`encode`.

    Returns:
        The stream, and the references in the pickle.

    Raises:
        Exception: that of pickling it.
    """
    envelope = MessageEnvelope(auth_domain=auth_domain)
    # as codec.pickling_into() has it, without its calls
    before = codec.set_envelope(envelope)
    try:
        stream = codec.pickled_into(make, value)
    except BaseException:
        envelope.void()
        raise
    finally:
        codec.set_envelope(before)
    return stream, list(envelope.references.values())


def _void_references(references: Iterable[Reference]) -> None:
    store.current().void_references(references)


def decode(item: Item) -> Any:
    """Unpickle the value of an item."""
    if type(item) is ItemInMemory:
        return item.load()
    return pickle.loads(item.pickled if isinstance(item, ItemWithReferences) else item)
