"""One direction of a queue or pipe at its owner: items in order, who wants them, who has room; pure.

Every method is an event and returns what is to be done, in order. An item belongs to the lane until
its reader has settled it: what a lost reader had not handed out goes back to the front.

Readers are any hashable names; None is a thread of the owner itself, whose items are its own at
once. ``take_now`` and ``put_now`` are the short ways of such threads when nobody waits.

Writers that wait for room in a lane, and room that is set aside for some of them; pure.

A writer elsewhere that had to ask for room is told how many more items it may send without asking,
so that it does not wait for an answer to each. That room is its own until it gives it up, which it
is asked to do when another writer finds none.

Who is told that a lane has items without being given any, for others may want them; pure.

A lane's only reader that waits by a descriptor is sent what comes at once. Where several readers
wait so, or threads of the owner do, each is told that there is something, and when there is not any
more; whoever asks first gets it. What was sent to one of them already is asked back for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import merge
from operator import itemgetter

from fiber._objects.protocol import Mode
from fiber._objects.queue.in_flight import Book, Placed, Progress
from fiber._objects.queue.messages import Item, until_none
from fiber._objects.queue.requests import (
    Accepted,
    Broken,
    Drop,
    End,
    Give,
    Instructions,
    Nothing,
    Offer,
    Ready,
    Recall,
    Refused,
    Request,
    Revoke,
    Unready,
    Watch,
)
from fiber.exceptions import WireError

#: most items that one writer may send without asking
_MOST = 256


class Gate:
    """Lets items into a lane.

    Args:
        maxsize: most items in the lane, 0 for any number.
        max_bytes: bytes in the lane from which on writers wait, 0 for any number.
    """

    def __init__(self, *, maxsize: int, max_bytes: int) -> None:
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        #: offers that wait for room, in order
        self.held: deque[Offer] = deque()
        # items that writers may send without asking, and those asked to give that up
        self._aside: dict[Hashable, int] = {}
        self._asked: set[Hashable] = set()

    def room(self, size: int, in_bytes: int) -> int | None:
        """How many items may come in; None for as many as there are."""
        if self.maxsize:
            return self.maxsize - size - sum(self._aside.values())
        return 0 if self.max_bytes and in_bytes >= self.max_bytes else None

    def admit(self, size: int, in_bytes: int) -> tuple[list[Item], Instructions]:
        """What comes in now, of those that wait."""
        came: list[Item] = []
        out: Instructions = []
        while self.held:
            room = self.room(size + len(came), in_bytes)
            offer = self.held[0]
            if room is None or room >= len(offer.items):
                came.extend(offer.items)
                in_bytes += sum(map(len, offer.items))
                self.held.popleft()
                out.append(Accepted(offer))
            elif not offer.wait and not self._aside:
                self.held.popleft()
                out.append(Refused(offer))
            elif offer.wait and room > 0:
                came.extend(offer.items.popleft() for _ in range(room))
            else:
                break
        return came, out

    def find(self, writer: Hashable, number: int) -> Offer | None:
        """A writer's waiting offer by its number."""
        for offer in self.held:
            if offer.number == number and offer.writer == writer:
                return offer
        return None

    def withdraw(self, offer: Offer) -> bool:
        """Forget a waiting offer; False where it is in already."""
        if offer not in self.held:
            return False
        self.held.remove(offer)
        return True

    # -- room set aside

    def grant(self, writer: Hashable, size: int) -> int:
        """Set room aside for a writer; how much."""
        if not self.maxsize or self.held:
            return 0
        free = self.maxsize - size - sum(self._aside.values())
        count = min(_MOST, max(0, free) // (2 + len(self._aside)))
        if count:
            self._aside[writer] = self._aside.get(writer, 0) + count
        return count

    def spend(self, writer: Hashable, count: int) -> None:
        """A writer sends items without having asked.

        Raises:
            WireError: more than were set aside for it.
        """
        left = self._aside.get(writer, 0) - count
        if left < 0:
            msg = f"a writer sends {count} items, {left + count} were set aside for it"
            raise WireError(msg)
        self._keep(writer, left)

    def give_up(self, writer: Hashable, count: int) -> None:
        """A writer will not send so many of them."""
        self._asked.discard(writer)
        self._keep(writer, max(0, self._aside.get(writer, 0) - count))

    def lose(self, writer: Hashable) -> None:
        """A writer is gone."""
        self._asked.discard(writer)
        self._keep(writer, 0)

    def claim(self) -> Instructions:
        """Where offers wait: have room given up that is set aside."""
        idle = [writer for writer in self._aside if writer not in self._asked]
        self._asked.update(idle)
        return [Revoke(writer) for writer in idle]

    @property
    def is_urgent(self) -> bool:
        """True while an offer that does not wait depends on room that is set aside."""
        return any(not offer.wait for offer in self.held)

    def tire(self) -> Instructions:
        """A moment has passed: refuse offers whose patience is at its end."""
        tired = []
        for offer in self.held:
            if not offer.wait:
                offer.patience -= 1
                if offer.patience <= 0:
                    tired.append(offer)
        for offer in tired:
            self.held.remove(offer)
        return [Refused(offer) for offer in tired]

    def _keep(self, writer: Hashable, count: int) -> None:
        if count:
            self._aside[writer] = count
        else:
            self._aside.pop(writer, None)


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


#: bytes in one delivery, more only where one item is larger
MAX_DELIVERY = 512 * 1024
# bytes up to which a delivery leaves its request in place for what comes next
_KEEP = 64 * 1024

_position = itemgetter(0)


class Lane:
    """The state of one lane. Not thread-safe.

    Args:
        maxsize: most items, those with readers that have not handed them out included; 0 for any.
        max_bytes: bytes from which on writers wait; 0 for any.
    """

    def __init__(self, *, maxsize: int = 0, max_bytes: int = 0) -> None:
        #: writers that wait for room
        self.gate = Gate(maxsize=maxsize, max_bytes=max_bytes)
        #: True once no writer can come any more
        self.writers_gone = False
        #: True once no reader can come any more
        self.readers_gone = False
        self._fresh: deque[Item] = deque()
        # position of the first fresh item; those that came back are all before it
        self._first = 0
        self._back: deque[Placed] = deque()
        self._bytes = 0
        self._waiting: deque[Request] = deque()
        self._books: dict[Hashable, Book] = {}
        self._watching = False
        #: who is told of items and not given any
        self.watchers = Watchers()

    # -- what it knows

    @property
    def available(self) -> int:
        """Items that can be taken now."""
        return len(self._fresh) + len(self._back)

    @property
    def size(self) -> int:
        """Items in it, with those that readers have and their users have not."""
        return self.available + self._parked()

    @property
    def has_room(self) -> bool:
        """True where the next item would be let in."""
        gate = self.gate
        room = gate.room(self.size if gate.maxsize else 0, self._bytes)
        return room is None or room > 0

    @property
    def holds(self) -> bool:
        """True while writers wait for room."""
        return bool(self.gate.held)

    @property
    def is_settled(self) -> bool:
        """True where everything that came in was handed out."""
        return not self.holds and not self.size

    @property
    def has_ended(self) -> bool:
        """True once nothing more can come from it."""
        return self.writers_gone and self.is_settled

    @property
    def readers(self) -> list[Hashable]:
        """The readers that asked before."""
        return list(self._books)

    # -- threads of the owner, short ways

    def put_now(self, item: Item) -> bool:
        """Let an item in, where nobody waits for it or before it; False otherwise."""
        if self._waiting or self.gate.held or self.readers_gone or not self.has_room:
            return False
        self._fresh.append(item)
        self._bytes += len(item)
        return True

    def take_now(self) -> Item | None:
        """The first item, taken, or None; where :attr:`holds`, :meth:`advance` afterwards."""
        if self._back:
            item = self._back.popleft()[1]
        elif self._fresh:
            item = self._fresh.popleft()
            self._first += 1
        else:
            return None
        self._bytes -= len(item)
        return item

    def untake(self, item: Item) -> Instructions:
        """The item that a thread of the owner took last comes back to the front."""
        position = self._back[0][0] - 1 if self._back else self._first - 1
        self._put_back([(position, item)])
        return self.advance()

    # -- writers

    def offer(self, offer: Offer) -> Instructions:
        """A writer has items and wants room for them."""
        if self.readers_gone:
            return [Broken(offer), Drop(list(offer.items))]
        if not offer.wait and self.gate.held:
            return [Refused(offer)]
        self.gate.held.append(offer)
        return self.advance()

    def put(self, offer: Offer) -> Instructions:
        """A writer sends items, where the number is limited by what was set aside for it.

        Raises:
            WireError: more than that.
        """
        if self.readers_gone or not self.gate.maxsize:
            return self.offer(offer)
        self.gate.spend(offer.writer, len(offer.items))
        self._let_in(offer.items)
        return [Accepted(offer), *self.advance()]

    def grant(self, writer: Hashable) -> int:
        """Set room aside for a writer that had to ask; for how many items."""
        return self.gate.grant(writer, self.size)

    def give_up(self, writer: Hashable, count: int) -> Instructions:
        """A writer gives up room that was set aside for it."""
        self.gate.give_up(writer, count)
        return self.advance()

    def lose_writer(self, writer: Hashable) -> Instructions:
        """A writer is gone; what it had offered stays."""
        self.gate.lose(writer)
        return self.advance()

    def close_writers(self) -> Instructions:
        """No writer can come any more."""
        self.writers_gone = True
        return self.advance()

    # -- readers

    def open(self, reader: Hashable, progress: Callable[[], Progress] | None = None) -> None:
        """A reader comes; where it has come before, nothing happens."""
        if reader not in self._books:
            self._books[reader] = Book() if progress is None else Book(progress)

    def ask(self, request: Request, settled: int = 0) -> Instructions:
        """A reader wants items and has handed out all up to a number.

        Raises:
            WireError: it settles more than it was given.
        """
        if request.reader is not None:
            self.open(request.reader)
            self._books[request.reader].settle(settled)
            self.watchers.forget(request.reader)
        # those that are only kept must not get what this one waits for
        out = ended(self._waiting, None, kept=True)
        self._waiting.append(request)
        return out + self.advance()

    def watch_here(self, flag: bool) -> Instructions:
        """Threads of the owner wait by a descriptor, or do so no more."""
        self.watchers.are_here = flag
        return ended(self._waiting, None, kept=True) + self.advance()

    def settle(self, reader: Hashable, upto: int) -> Instructions:
        """A reader has handed out all up to a number.

        Raises:
            WireError: it was not given so many.
        """
        book = self._books.get(reader)
        if book is None:
            return []
        book.settle(upto)
        return self.advance()

    def give_back(self, reader: Hashable, after: int, upto: int) -> Instructions:
        """A reader has handed out all up to a number and gives back what follows.

        Raises:
            WireError: it was not given so many.
        """
        book = self._books.get(reader)
        if book is None:
            return []
        self._put_back(book.give_back(after, upto))
        # it is not to get them again at once
        return ended(self._waiting, reader, kept=True) + self.advance()

    def cancel(self, request: Request) -> bool:
        """Forget a waiting request; False where it was answered already."""
        try:
            self._waiting.remove(request)
        except ValueError:
            return False
        return True

    def cancel_all(self, reader: Hashable) -> Instructions:
        """A reader waits no more."""
        return ended(self._waiting, reader, kept=False)

    def lose(self, reader: Hashable) -> Instructions:
        """A reader is gone, however it went."""
        book = self._books.pop(reader, None)
        if book is None:
            return []
        ended(self._waiting, reader, kept=False)
        self.watchers.forget(reader)
        self._put_back(book.remains())
        if self.readers_gone:
            return self._drop()
        return self.advance()

    def close_readers(self) -> Instructions:
        """No reader can come any more."""
        self.readers_gone = True
        return self._drop()

    # -- inside

    def overdue(self) -> Instructions:
        """The moment of a :class:`Watch` has come: have parked items back that others wait for."""
        self._watching = False
        out: Instructions = self.gate.tire()
        if not self.available:
            out += tired(self._waiting)
            if self.watchers.are_here or any(map(self._is_wanted, self._waiting)):
                out += recall(self._books)
        return out + self.advance()

    def advance(self) -> Instructions:
        """Let in what has room, hand out what is wanted."""
        out: Instructions = []
        while self._admit(out) | self._serve(out):
            continue
        out += self.watchers.review(self.available)
        if self._waiting or self.watchers.are_here:
            self._look_elsewhere(out)
        if self.gate.held:
            out += self.gate.claim()
            if self.gate.is_urgent:
                self._watch(out)
        return out

    def _admit(self, out: Instructions) -> bool:
        if not self.gate.held:
            return False
        came, accepted = self.gate.admit(self.size, self._bytes)
        self._let_in(came)
        out += accepted
        return bool(came or accepted)

    def _let_in(self, came: Iterable[Item]) -> None:
        self._fresh.extend(came)
        self._bytes += sum(map(len, came))

    def _serve(self, out: Instructions) -> bool:
        changed = False
        while self._waiting and self.available:
            request = self._waiting.popleft()
            changed = True
            if request.peek:
                out.append(Give(request, 0, []))
                continue
            if request.mode is Mode.STANDING and self._is_shared:
                out.append(self.watchers.tell(request))
                continue
            placed = self._take(self._share(request))
            items = [item for _, item in placed]
            if request.reader is None:
                out.append(Give(request, 0, items))
                continue
            first = self._books[request.reader].deliver(placed)
            request.want -= len(items)
            request.kept = self._may_stay(request, items)
            if request.kept:
                self._waiting.append(request)
            out.append(Give(request, first, items, request.kept))
        return changed

    def _may_stay(self, request: Request, items: list[Item]) -> bool:
        """True where a lane's only reader is to get what comes next without asking again."""
        alone = not (self._is_shared or self._waiting or self.available)
        small = request.want > 0 and sum(map(len, items)) <= _KEEP
        return alone and small and request.mode is not Mode.NOWAIT

    def _share(self, request: Request) -> int:
        """How many items one reader gets: what is left is spread over all of them."""
        available = self.available
        fair = max(1, available // max(1, len(self._books)))
        light = max(1, MAX_DELIVERY * available // max(1, self._bytes))
        count = min(request.want, fair, light, available)
        return until_none(self._back, self._fresh, count) if self._is_shared else count

    @property
    def _is_shared(self) -> bool:
        """True where what one reader is sent unasked may be what another waits for."""
        return len(self._books) != 1 or self.watchers.are_here

    def _is_wanted(self, request: Request) -> bool:
        """True where others are to give back what they have not handed out."""
        return request.is_urgent or (request.mode is Mode.STANDING and self._is_shared)

    def _take(self, count: int) -> list[Placed]:
        placed: list[Placed] = []
        while self._back and len(placed) < count:
            placed.append(self._back.popleft())
        rest = count - len(placed)
        if rest:
            popped = [self._fresh.popleft() for _ in range(rest)]
            placed += zip(range(self._first, self._first + rest), popped, strict=True)
            self._first += rest
        self._bytes -= sum(len(item) for _, item in placed)
        return placed

    def _put_back(self, placed: Sequence[Placed]) -> None:
        if placed:
            self._bytes += sum(len(item) for _, item in placed)
            self._back = deque(merge(self._back, placed, key=_position))

    def _parked(self, *, without: Hashable = None) -> int:
        return sum(book.parked() for name, book in self._books.items() if name != without)

    def _look_elsewhere(self, out: Instructions) -> None:
        """Nothing is available: what others hold may come back; else say what there is to say."""
        hope = self.watchers.are_here and not self.available and self._parked() > 0
        at_once = False
        for request in list(self._waiting):
            if self._parked(without=request.reader):
                at_once = at_once or request.mode is Mode.NOWAIT
                hope = hope or self._is_wanted(request)
            elif self.writers_gone and not self.gate.held:
                self._waiting.remove(request)
                out.append(End(request))
            elif request.mode is Mode.NOWAIT:
                self._waiting.remove(request)
                out.append(Nothing(request))
        if at_once:
            out += recall(self._books)
        # a reader that is busy handing out is given a moment before it is asked
        if at_once or (hope and unasked(self._books)):
            self._watch(out)

    def _watch(self, out: Instructions) -> None:
        if not self._watching:
            self._watching = True
            out.append(Watch())

    def _drop(self) -> Instructions:
        held = list(self.gate.held)
        self.gate.held.clear()
        dropped = [item for offer in held for item in offer.items]
        dropped += self._fresh
        dropped += (item for _, item in self._back)
        self._fresh.clear()
        self._back.clear()
        self._bytes = 0
        return [*map(Broken, held), *([Drop(dropped)] if dropped else ())]
