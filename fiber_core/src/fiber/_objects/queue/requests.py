"""Requests of readers, offers of writers, and the commands that answer them."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TypeAlias

from fiber._base import values
from fiber._objects.protocol import Mode
from fiber._objects.queue.messages import Item

#: ticks of the timer that a request which does not wait outlasts while items or credits come back
_RETRIES = 20


@values.define(eq=False)
class Request:
    """A reader's request for items; a subclass may hold where they go."""

    #: name of the reader; None for a thread of the owner
    reader: Hashable
    #: the reader's number for its session
    number: int = 0
    #: most items
    max_items: int = 1
    mode: Mode = Mode.WAIT
    #: True to be answered when there is an item, without taking it
    peek: bool = False
    #: True once it was answered and stays for the items that come next
    kept: bool = False
    retries_left: int = _RETRIES

    @property
    def is_urgent(self) -> bool:
        """True where a thread is known to wait for the answer."""
        return not self.kept and self.mode is not Mode.STANDING


@values.define(eq=False)
class Offer:
    """Items that a writer puts; a subclass may hold where the outcome goes."""

    writer: Hashable
    items: deque[Item]
    #: the writer's number for it
    number: int = 0
    #: False to be refused where there is no room
    wait: bool = True
    retries_left: int = _RETRIES


@values.define
class Deliver:
    """Answer a request with items; ``first`` is the number of the first one for this reader."""

    request: Request
    first: int
    items: list[Item]
    #: True where the request stays
    kept: bool = False


@values.frozen
class Nothing:
    """Answer a request: there is no item now."""

    request: Request


@values.frozen
class Ready:
    """Notify a reader that polls: there are items for the first request."""

    request: Request


@values.frozen
class Unready:
    """Withdraw a :class:`Ready`: there is no item now."""

    request: Request


@values.frozen
class End:
    """Answer a request: no item is left and none will come."""

    request: Request


@values.frozen
class Accepted:
    """Answer an offer: all its items are in the queue."""

    offer: Offer


@values.frozen
class Refused:
    """Answer an offer: there is no room."""

    offer: Offer


@values.frozen
class Broken:
    """Answer an offer: there is no reader any more."""

    offer: Offer


@values.frozen
class Recall:
    """Ask a reader to give back its prefetched items."""

    reader: Hashable


@values.frozen
class OpenBypass:
    """Answer a request: what comes next comes through a bypass."""

    request: Request
    number: int
    #: number in it of the item that is next
    count: int


@values.frozen
class Revoke:
    """Ask a writer to return its credits."""

    writer: Hashable


@values.frozen
class StartTimer:
    """Call :meth:`~fiber._objects.queue.state.QueueState.on_timer` in a moment."""


@values.frozen
class Drop:
    """Release the references of items that no reader will get."""

    items: list[Item]


Command: TypeAlias = (
    Deliver
    | Nothing
    | Ready
    | Unready
    | End
    | Accepted
    | Refused
    | Broken
    | Recall
    | OpenBypass
    | Revoke
    | StartTimer
    | Drop
)
Commands: TypeAlias = list[Command]
