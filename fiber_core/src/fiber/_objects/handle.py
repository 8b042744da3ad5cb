"""What holds one end of a shared object for the user, and how it is pickled.

What a handle does with its object, the same for the owner and for everybody else.
"""

from __future__ import annotations

import pickle
import secrets
import weakref
from typing import Any, Protocol

from fiber._objects import store
from fiber._objects.address import Address, Shape
from fiber._objects.queue.messages import Item, Laden
from fiber._objects.queue.ready_fd import Bell
from fiber._objects.references import ANY, LASTING
from fiber._wire import codec
from fiber._wire.codec import Parcel


class Source(Protocol):
    """The reading side of a lane."""

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item.

        Raises:
            queue.Empty: there is none now, or none has come in time.
            EOFError: none will ever come.
        """

    def ready(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would return or raise EOFError; False when none came in time."""

    def bell(self) -> Bell:
        """What tells that :meth:`take` would return or raise EOFError."""


class Sink(Protocol):
    """The writing side of a lane."""

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Hand an item over.

        Raises:
            queue.Full: there is no room now, or none has come in time.
            BrokenPipeError: nobody reads.
        """

    def flush(self) -> None:
        """Wait until all that was put is with the owner, or the owner is gone."""

    def deliver(self) -> None:
        """Wait until all that was put arrives whatever becomes of this process."""

    def abandon(self) -> None:
        """Let the end of this process wait for nothing that was put."""


class Holdable(Protocol):
    """An object of any kind as handles in one process see it."""

    @property
    def shape(self) -> Shape:
        """What it is made of."""

    @property
    def address(self) -> Address:
        """What is pickled in its place."""

    @property
    def realm(self) -> str | None:
        """The realm of other programs that use it; None within one run."""

    def address_in(self, realm: str | None) -> Address:
        """What processes of a realm are told, of the run where it is None."""

    def hold(self, end: int, ticket: int = 0) -> bool:
        """There is one more handle of an end here; False where the object has just been let go."""

    def drop(self, end: int) -> None:
        """A handle of an end was closed."""

    def drop_soon(self, end: int) -> None:
        """A handle of an end was collected; callable whenever the collector runs."""

    def issue(self, ticket: int, end: int, uses: int) -> None:
        """A pickle of an end is on its way."""

    def void(self, ticket: int) -> None:
        """A pickle of an end is loaded no more; callable whenever the collector runs."""


class Channels(Holdable, Protocol):
    """A queue or pipe."""

    def source(self, lane: int) -> Source:
        """The reading side of a lane."""

    def sink(self, lane: int) -> Sink:
        """The writing side of a lane."""

    def size(self, lane: int) -> int:
        """Items in a lane."""


class Tasks(Channels, Protocol):
    """A queue of tasks."""

    def finish(self, source: object) -> bool:
        """A task was done by who reads from ``source``; False where all were done already."""

    def join(self) -> None:
        """Wait until all tasks are done."""


# tickets by what carries them, and of pickles that nothing of ours carries
_carried: weakref.WeakKeyDictionary[Any, dict[Any, int]] = weakref.WeakKeyDictionary()
_lasting: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()


class Handle:
    """One end of an object, held until it is closed or collected."""

    _object: Holdable
    _end: int
    #: the realm that reads what is sent, where its object does not tell
    _realm: str | None = None

    def _take_hold(self, shared: Holdable, end: int) -> None:
        """Become the handle of an end that is held for it already."""
        self._object = shared
        self._end = end
        self._letting_go = weakref.finalize(self, shared.drop_soon, end)
        self._letting_go.atexit = False
        self._open()

    def _open(self) -> None:
        """For subclasses: the object is there now."""

    def _let_go(self) -> None:
        """Hold it no more; idempotent."""
        if self._letting_go.detach() is not None:
            self._object.drop(self._end)

    def _address(self) -> Any:
        """The address for the pickle that is being made."""
        carrier = codec.carrier()
        address = self._object.address_in(_realm_of(carrier))
        known = self._readers()
        if known is not None and carrier is not None and _realm_of(carrier) is None:
            # on the private ways of a run
            return store.current().realms.introduce(address, known)
        return address

    def __reduce__(self) -> Any:
        return type(self)._load, (  # noqa: SLF001 - its own
            self._address(),
            self._end,
            self._ticket(),
            *self._state(),
        )

    @classmethod
    def _load(cls, address: Address, end: int, ticket: int, *state: Any) -> Handle:
        """The handle of a pickle."""
        handle = cls.__new__(cls)
        handle._restore(*state)  # noqa: SLF001 - its own
        handle._take_hold(store.current().take(address, end, ticket), end)  # noqa: SLF001 - its own
        return handle

    def _readers(self) -> str | None:
        """The realm that reads what is sent; None for the run."""
        return self._realm or self._object.realm

    def _state(self) -> tuple[Any, ...]:
        """For subclasses: what :meth:`_restore` gets."""
        return ()

    def _restore(self, *state: Any) -> None:
        """For subclasses: take what :meth:`_state` said; before :meth:`_open`."""

    def _ticket(self) -> int:
        """A ticket for the pickle that is being made.

        It lasts as long as what carries the pickle: an item of a queue until it is loaded or
        dropped, a process until each of its processes has loaded it or it has ended, a call of a
        pool until it is done. A pickle that the user makes may be loaded at any time, so its ticket
        lasts.
        """
        shared, end = self._object, self._end
        carrier = codec.carrier()
        if isinstance(carrier, Parcel):
            made = carrier.tickets.get(id(self))
            if made is not None:
                return made[3]
            ticket = _issue(shared, end, carrier.uses)
            address = shared.address_in(carrier.realm)
            carrier.tickets[id(self)] = (address.ident, address.urls, address.target, ticket)
            return ticket
        if carrier is None:
            lasting = _lasting.setdefault(shared, {})
            if end not in lasting:
                lasting[end] = _issue(shared, end, LASTING)
            return lasting[end]
        tickets = _carried.setdefault(carrier, {})
        key = (id(self), id(shared), end)
        if key not in tickets:
            ticket = tickets[key] = _issue(shared, end, getattr(carrier, "processes", ANY))
            # once: when the carrier says so, or is given up before it ever went
            void = weakref.finalize(carrier, shared.void, ticket)
            void.atexit = False
            carrier.on_release(void)
        return tickets[key]


def _issue(shared: Holdable, end: int, uses: int) -> int:
    ticket = secrets.randbits(63) | 1
    shared.issue(ticket, end, uses)
    return ticket


def _realm_of(carrier: Any) -> str | None:
    return carrier.realm if isinstance(carrier, Parcel) else None


def encode(value: Any, uses: int = 1, *, realm: str | None = None) -> Item:
    """The item of a value, pickled now.

    Args:
        value: what it is.
        uses: how many times it will be loaded, :data:`ANY` until it is dropped.
        realm: who loads it; None for processes of this run.

    Raises:
        Exception: what pickling it raised.
    """
    parcel = Parcel(uses, realm)
    before = codec.carry(parcel)
    try:
        pickled = codec.pickled(value)
    finally:
        codec.carry(before)
    if parcel.tickets:
        return Laden.of(parcel.tickets.values(), pickled)
    return pickled


def decode(item: Item) -> Any:
    """The value of an item."""
    return pickle.loads(item.pickled if isinstance(item, Laden) else item)
