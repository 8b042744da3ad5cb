"""Who is told that a lane has items without being given any, for others may want them; pure.

A lane's only reader that waits by a descriptor is sent what comes at once. Where several readers
wait so, or threads of the owner do, each is told that there is something, and when there is not any
more; whoever asks first gets it. What was sent to one of them already is asked back for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping

from fiber._objects.protocol import Mode
from fiber._objects.queue.in_flight import Book
from fiber._objects.queue.requests import Instructions, Nothing, Ready, Recall, Request, Unready


class Watchers:
    """The watchers of one lane."""

    def __init__(self) -> None:
        #: True where threads of the owner wait by a descriptor
        self.are_here = False
        self._told: dict[Hashable, Request] = {}

    def __bool__(self) -> bool:
        return bool(self._told)

    def tell(self, request: Request) -> Ready:
        """There is something."""
        self._told[request.reader] = request
        return Ready(request)

    def review(self, available: int) -> Instructions:
        """So many items are there now."""
        if available or not self._told:
            return []
        told, self._told = list(self._told.values()), {}
        return [Unready(request) for request in told]

    def forget(self, reader: Hashable) -> None:
        """A reader asks, or is gone."""
        self._told.pop(reader, None)


def ended(waiting: deque[Request], reader: Hashable, *, kept: bool) -> Instructions:
    """End the requests of one reader, or of all; all of them, or those that nobody waits for."""
    found = [r for r in waiting if reader in (None, r.reader) and (r.kept or not kept)]
    for request in found:
        waiting.remove(request)
    return [Nothing(request) for request in found]


def tired(waiting: deque[Request]) -> Instructions:
    """A moment has passed in vain: end the requests that have waited so long enough."""
    found = [request for request in waiting if request.mode is Mode.NOWAIT]
    for request in found:
        request.patience -= 1
    over = [request for request in found if not request.patience]
    for request in over:
        waiting.remove(request)
    return [Nothing(request) for request in over]


def unasked(books: Mapping[Hashable, Book]) -> list[Hashable]:
    """Readers that hold items and were not asked to give them back."""
    return [name for name, book in books.items() if not book.recalled and book.parked()]


def recall(books: Mapping[Hashable, Book]) -> Instructions:
    """Ask them."""
    names = unasked(books)
    for name in names:
        books[name].recalled = True
    return [Recall(name) for name in names]
