"""State machine of one direction of a queue or pipe at its owner; pure.

Every method is an event and returns the commands to execute, in order. An item belongs to the queue
until its reader has settled it: items that a lost reader had not handed to its user go back to the
front. Readers and writers are any hashable names (peers, in practice); None is a thread of the
owner itself, whose items are its own at once.

Five parts:

- :class:`InFlight`: deliveries to one reader that are not settled yet (AMQP: unacknowledged).
- :class:`CreditWindow`: flow control. Where ``maxsize`` limits the number of items, a writer in
  another process makes an offer, and is granted *credits* with the answer: items that it may send
  without another offer, so that not every put waits for a round trip. It keeps them until it
  returns them, which it is asked to do when another writer finds no room.
- :class:`Pollers`: readers that want a readiness notification (``select``, ``wait``) rather than an
  item. An only reader that polls is sent items at once. Where several poll, or threads of the owner
  do, each is notified that there are items, and again when there are none: the first request gets
  them, and prefetched items are recalled for the others.
- :class:`~fiber._objects.queue.bypass.Bypass`: items that a writer sends to a reader itself, with copies here.
- :class:`QueueState`: items, requests and deliveries; it has one of each of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import merge
from operator import itemgetter

from fiber._objects.protocol import Mode
from fiber._objects.queue.bypass import Bypass, Positioned, Progress
from fiber._objects.queue.messages import Item, count_to_none
from fiber._objects.queue.requests import (
    Accepted,
    Broken,
    Commands,
    Deliver,
    Drop,
    End,
    Nothing,
    Offer,
    OpenBypass,
    Ready,
    Recall,
    Refused,
    Request,
    Revoke,
    StartTimer,
    Unready,
)
from fiber.exceptions import WireError


def _unknown() -> Progress:
    return 0, 0, 0


class InFlight:
    """Items delivered to one reader, numbered from 1 on; they are the queue's until settled.

    Args:
        progress: returns what the reader notes in shared memory (see
            :mod:`fiber._objects.queue.progress`), which may be ahead of its messages; needed when
            it dies suddenly. Without it only messages count.
    """

    __slots__ = ("_unsettled", "delivered", "progress", "recalled", "settled")

    def __init__(self, progress: Callable[[], Progress] = _unknown) -> None:
        #: what the reader notes
        self.progress = progress
        self._unsettled: deque[Positioned] = deque()
        #: number of the last item delivered
        self.delivered = 0
        #: number up to which all is settled
        self.settled = 0
        #: True while the reader owes an answer to a recall
        self.recalled = False

    def deliver(self, placed: list[Positioned]) -> int:
        """Note a delivery and return the number of its first item."""
        first = self.delivered + 1
        self.delivered += len(placed)
        self._unsettled.extend(placed)
        return first

    def settle(self, upto: int) -> None:
        """Settle items up to number ``upto``: the reader has handed them to its user.

        Raises:
            WireError: fewer were delivered.
        """
        if upto > self.delivered:
            msg = f"a reader settles {upto} items of {self.delivered}"
            raise WireError(msg)
        # messages of several threads: an older one may come later
        for _ in range(upto - self.settled):
            self._unsettled.popleft()
        self.settled = max(self.settled, upto)

    def prefetched(self) -> int:
        """Number of items that the reader has and has not handed to its user."""
        if self.delivered == self.settled:
            return 0
        returned, after, upto = self._read()
        again = max(0, min(upto, returned) - max(after, self.settled))
        return self.delivered - max(returned, self.settled) + again

    def give_back(self, after: int, upto: int) -> list[Positioned]:
        """Take back the items behind number ``after`` up to ``upto``; those before are settled.

        Raises:
            WireError: these were not delivered, or are settled.
        """
        if not after <= upto <= self.delivered or upto < self.settled:
            msg = f"a reader gives back {after} to {upto} of {self.settled} to {self.delivered}"
            raise WireError(msg)
        self.recalled = False
        self.settle(after)
        back = [self._unsettled.popleft() for _ in range(upto - self.settled)]
        self.settled = upto
        return back

    def leave_bypass(self, after: int, upto: int) -> list[Positioned]:
        """As :meth:`give_back` of items up to ``upto``, the last of which came through a bypass.

        Raises:
            WireError: these numbers make no sense.
        """
        if not after <= upto or upto < self.delivered:
            msg = f"a reader leaves a bypass after {after} to {upto} of {self.delivered}"
            raise WireError(msg)
        back = self.give_back(min(after, self.delivered), self.delivered)
        self.delivered = self.settled = upto
        return back

    def unconsumed(self) -> list[Positioned]:
        """Items that a reader which is gone had not handed to its user."""
        returned, after, upto = self._read()
        return [
            placed
            for number, placed in enumerate(self._unsettled, self.settled + 1)
            if number > returned or after < number <= upto
        ]

    def _read(self) -> Progress:
        returned, after, upto = self.progress()
        return min(returned, self.delivered), after, upto


#: most items that one writer may send without asking
_MAX_CREDIT = 256


class CreditWindow:
    """Admission of items into a queue: offers that wait for room, and writers' credits.

    A credit is room for one item that is reserved for one writer.

    Args:
        maxsize: most items in the queue, 0 for any number.
        max_bytes: bytes in the queue from which on writers wait, 0 for any number.
    """

    def __init__(self, *, maxsize: int, max_bytes: int) -> None:
        self.maxsize = maxsize
        self.max_bytes = max_bytes
        #: offers that wait for room, in order
        self.waiting: deque[Offer] = deque()
        # credits of each writer, and writers that were asked to return theirs
        self._credits: dict[Hashable, int] = {}
        self._revoked: set[Hashable] = set()

    def room(self, size: int, in_bytes: int) -> int | None:
        """Items that may come in, None for any number.

        Args:
            size: items in the queue.
            in_bytes: their bytes.
        """
        if self.maxsize:
            return self.maxsize - size - sum(self._credits.values())
        return 0 if self.max_bytes and in_bytes >= self.max_bytes else None

    def admit(self, size: int, in_bytes: int) -> tuple[list[Item], Commands]:
        """Admit waiting offers in order; returns their items, and the answers to their writers."""
        admitted: list[Item] = []
        out: Commands = []
        while self.waiting:
            room = self.room(size + len(admitted), in_bytes)
            offer = self.waiting[0]
            if room is None or room >= len(offer.items):
                admitted.extend(offer.items)
                in_bytes += sum(map(len, offer.items))
                self.waiting.popleft()
                out.append(Accepted(offer))
            elif not offer.wait and not self._credits:
                self.waiting.popleft()
                out.append(Refused(offer))
            elif offer.wait and room > 0:
                admitted.extend(offer.items.popleft() for _ in range(room))
            else:
                break
        return admitted, out

    def find(self, writer: Hashable, number: int) -> Offer | None:
        """A writer's waiting offer by its number."""
        for offer in self.waiting:
            if offer.number == number and offer.writer == writer:
                return offer
        return None

    def withdraw(self, offer: Offer) -> bool:
        """Remove a waiting offer; False where it was admitted already."""
        if offer not in self.waiting:
            return False
        self.waiting.remove(offer)
        return True

    # -- credits

    def grant(self, writer: Hashable, size: int) -> int:
        """Grant a writer a fair share of the free room; how many credits.

        It is 0 where writers wait, or where nothing limits the number of items.
        """
        if not self.maxsize or self.waiting:
            return 0
        free = self.maxsize - size - sum(self._credits.values())
        count = min(_MAX_CREDIT, max(0, free) // (2 + len(self._credits)))
        if count:
            self._credits[writer] = self._credits.get(writer, 0) + count
        return count

    def spend(self, writer: Hashable, count: int) -> None:
        """Use up credits of a writer that sends items without an offer.

        Raises:
            WireError: it has fewer.
        """
        left = self._credits.get(writer, 0) - count
        if left < 0:
            msg = f"a writer sends {count} items, {left + count} were set aside for it"
            raise WireError(msg)
        self._set_credit(writer, left)

    def return_credit(self, writer: Hashable, count: int) -> None:
        """Take back credits that a writer returns."""
        self._revoked.discard(writer)
        self._set_credit(writer, max(0, self._credits.get(writer, 0) - count))

    def remove_writer(self, writer: Hashable) -> None:
        """Take back all credits of a writer that is gone."""
        self._revoked.discard(writer)
        self._set_credit(writer, 0)

    def revoke(self) -> Commands:
        """Ask writers to return their credits, each once; while offers wait."""
        idle = [writer for writer in self._credits if writer not in self._revoked]
        self._revoked.update(idle)
        return [Revoke(writer) for writer in idle]

    @property
    def is_urgent(self) -> bool:
        """True while an offer of ``put_nowait`` depends on credits of other writers."""
        return any(not offer.wait for offer in self.waiting)

    def expire(self) -> Commands:
        """Refuse offers of ``put_nowait`` that have no retries left; at each tick of the timer."""
        expired = []
        for offer in self.waiting:
            if not offer.wait:
                offer.retries_left -= 1
                if offer.retries_left <= 0:
                    expired.append(offer)
        for offer in expired:
            self.waiting.remove(offer)
        return [Refused(offer) for offer in expired]

    def _set_credit(self, writer: Hashable, count: int) -> None:
        if count:
            self._credits[writer] = count
        else:
            self._credits.pop(writer, None)


class Pollers:
    """Readers that poll a descriptor (``select``, ``wait``) and were notified of items."""

    def __init__(self) -> None:
        #: True where threads of the owner poll a descriptor
        self.owner_polls = False
        self._notified: dict[Hashable, Request] = {}

    def __bool__(self) -> bool:
        return bool(self._notified)

    def notify(self, request: Request) -> Ready:
        """Notify the reader of a standing request."""
        self._notified[request.reader] = request
        return Ready(request)

    def on_available(self, available: int) -> Commands:
        """Withdraw all notifications once no item is available."""
        if available or not self._notified:
            return []
        notified, self._notified = list(self._notified.values()), {}
        return [Unready(request) for request in notified]

    def forget(self, reader: Hashable) -> None:
        """Withdraw the notification of a reader that requests items, or is gone."""
        self._notified.pop(reader, None)


def end_requests(waiting: deque[Request], reader: Hashable, *, kept: bool) -> Commands:
    """Answer requests with "nothing now".

    Args:
        waiting: requests, from which they are removed.
        reader: whose; None for all readers.
        kept: True for those alone that were answered once and are kept.
    """
    found = [r for r in waiting if reader in (None, r.reader) and (r.kept or not kept)]
    for request in found:
        waiting.remove(request)
    return [Nothing(request) for request in found]


def expire_requests(waiting: deque[Request]) -> Commands:
    """Answer ``get_nowait`` requests that have no retries left; at each tick of the timer."""
    found = [request for request in waiting if request.mode is Mode.NOWAIT]
    for request in found:
        request.retries_left -= 1
    expired = [request for request in found if not request.retries_left]
    for request in expired:
        waiting.remove(request)
    return [Nothing(request) for request in expired]


def not_recalled(in_flight: Mapping[Hashable, InFlight]) -> list[Hashable]:
    """Readers with prefetched items that were not asked to give them back."""
    return [
        name
        for name, deliveries in in_flight.items()
        if not deliveries.recalled and deliveries.prefetched()
    ]


def recall(in_flight: Mapping[Hashable, InFlight]) -> Commands:
    """Ask readers to give back their prefetched items, each once."""
    names = not_recalled(in_flight)
    for name in names:
        in_flight[name].recalled = True
    return [Recall(name) for name in names]


#: bytes in one delivery, more only where one item is larger
MAX_DELIVERY = 512 * 1024
# bytes of a delivery up to which its request is kept for the items that come next
_KEEP_OPEN_BYTES = 64 * 1024
# requests in turn after which other readers seem to want no items: who writes may read as well
_ALONE_AFTER = 8

_position = itemgetter(0)


class QueueState:
    """The state of one direction of a queue or pipe. Not thread-safe.

    Args:
        maxsize: most items, prefetched ones included; 0 for any number.
        max_bytes: bytes from which on writers wait; 0 for any number.
    """

    def __init__(self, *, maxsize: int = 0, max_bytes: int = 0) -> None:
        #: admission of items, and the writers that wait for it
        self.window = CreditWindow(maxsize=maxsize, max_bytes=max_bytes)
        #: True once no writer can come any more
        self.writers_gone = False
        #: True once no reader can come any more
        self.readers_gone = False
        self._fresh: deque[Item] = deque()
        # position of the first fresh item; those that were returned are all before it
        self._first = 0
        self._returned_items: deque[Positioned] = deque()
        self._bytes = 0
        self._waiting: deque[Request] = deque()
        self._in_flight: dict[Hashable, InFlight] = {}
        # the reader that asked last, and how often it has since another one did
        self._asker: Hashable = None
        self._asked = 0
        self._timer_is_set = False
        #: readers that were notified of items
        self.pollers = Pollers()
        #: socket between a writer and a reader
        self.bypass = Bypass()

    # -- properties

    @property
    def available(self) -> int:
        """Items that can be taken now."""
        return len(self._fresh) + len(self._returned_items)

    @property
    def size(self) -> int:
        """Items in it, those included that readers have prefetched."""
        return self.available + self._prefetched()

    @property
    def has_room(self) -> bool:
        """True where the next item would be admitted."""
        window = self.window
        room = window.room(self.size if window.maxsize else 0, self._bytes)
        return room is None or room > 0

    @property
    def has_waiting_writers(self) -> bool:
        """True while offers wait for room."""
        return bool(self.window.waiting)

    @property
    def is_settled(self) -> bool:
        """True where no item is left: each was handed to a user."""
        return not self.has_waiting_writers and not self.size

    @property
    def is_wanting(self) -> bool:
        """True where a reader asks for an item while there is none."""
        return not self.available and not all(request.kept for request in self._waiting)

    @property
    def has_ended(self) -> bool:
        """True once no item is left and no writer can put another."""
        return self.writers_gone and self.is_settled

    @property
    def readers(self) -> list[Hashable]:
        """Readers in other processes."""
        return list(self._in_flight)

    # -- fast paths of the owner's threads

    def put_now(self, item: Item) -> bool:
        """Add an item if neither a reader nor a writer waits and there is room; False otherwise."""
        if self._waiting or self.window.waiting or self.readers_gone or not self.has_room:
            return False
        if self.bypass.is_open:
            return False
        self._fresh.append(item)
        self._bytes += len(item)
        return True

    def deliver_now(self, item: Item) -> Deliver | None:
        """Deliver an item to the only reader that asks; None where it is not so simple."""
        waiting, in_flight = self._waiting, self._in_flight
        if len(waiting) != 1 or self._fresh or self._returned_items or self.bypass.is_open:
            return None
        # as `_asks_alone` has it, without its calls
        if self.pollers.owner_polls or (len(in_flight) != 1 and self._asked < _ALONE_AFTER):
            return None
        request, window = waiting[0], self.window
        if request.reader is None or request.peek or window.waiting or window.maxsize:
            return None
        if self.readers_gone or (request.mode is Mode.STANDING and self._is_shared):
            return None
        first = in_flight[request.reader].deliver([(self._first, item)])
        self._first += 1
        request.max_items -= 1
        request.kept = self._may_stay(request, len(item))
        if not request.kept:
            waiting.clear()
        return Deliver(request, first, [item], request.kept)

    def wait_now(self, request: Request) -> bool:
        """Have a thread of the owner wait for the next item; False where it is not so simple."""
        if self._waiting or self._fresh or self._returned_items or self.bypass.is_open:
            return False
        if (
            (self._in_flight and self._prefetched())
            or self.window.waiting
            or self.writers_gone
            or self.pollers.owner_polls
            or request.mode is not Mode.WAIT
        ):
            return False
        self._waiting.append(request)
        return True

    def take_now(self) -> Item | None:
        """Take the first item, None if there is none; then :meth:`advance` if writers wait."""
        if self.bypass.holds:
            return None
        if self._returned_items:
            item = self._returned_items.popleft()[1]
        elif self._fresh:
            item = self._fresh.popleft()
            self._first += 1
        else:
            return None
        self._bytes -= len(item)
        return item

    def pass_on(self, request: Request) -> bool:
        """Remove the only request that waits, for an item that comes next; False where it is not so."""
        waiting = self._waiting
        if len(waiting) != 1 or waiting[0] is not request or self.window.waiting:
            return False
        if self._fresh or self._returned_items or self.bypass.is_open:
            return False
        waiting.clear()
        # as if it had been in the queue
        self._first += 1
        return True

    def undo_take(self, item: Item) -> Commands:
        """Put back, in front, the item that a thread of the owner took last."""
        position = self._returned_items[0][0] - 1 if self._returned_items else self._first - 1
        self._put_back([(position, item)])
        return self.advance()

    # -- writers

    def offer(self, offer: Offer) -> Commands:
        """Offer a writer's items, which wait for room."""
        if self.readers_gone:
            return [Broken(offer), Drop(list(offer.items))]
        if not offer.wait and self.window.waiting:
            return [Refused(offer)]
        self.window.waiting.append(offer)
        return self.advance()

    def put(self, offer: Offer) -> Commands:
        """Add items of a writer, which uses up as many of its credits where ``maxsize`` is limited.

        Raises:
            WireError: it has fewer.
        """
        if self.readers_gone or not self.window.maxsize:
            return self.offer(offer)
        self.window.spend(offer.writer, len(offer.items))
        self._let_in(offer.items)
        return [Accepted(offer), *self.advance()]

    def hold_copy(self, writer: Hashable, number: int, count: int, item: Item) -> bool:
        """Keep the copy of item ``count`` of a bypass while it is open; False where it is not."""
        bypass = self.bypass
        if not (bypass.is_open and bypass.is_between(writer, number)):
            return False
        if self._fresh:
            # others', who put them while the reader is asked to leave
            position = self._first - 1
        else:
            position = self._first
            self._first += 1
        bypass.hold(count, (position, item))
        return True

    def put_copy(self, offer: Offer, number: int, count: int) -> Commands:
        """Take the copy of item ``count`` of a bypass; it opens one that is offered where only its reader waits.

        Raises:
            WireError: as of :meth:`put`.
        """
        bypass, out = self.bypass, Commands()
        if not bypass.is_open and bypass.is_between(offer.writer, number):
            out = self._open_bypass(count)
        if self.hold_copy(offer.writer, number, count, offer.items[0]):
            return [*out, Accepted(offer)]
        if bypass.was_handed_out(offer.writer, number, count):
            return [*out, Accepted(offer)]
        return out + self.put(offer)

    def grant(self, writer: Hashable) -> int:
        """Grant a writer whose offer was accepted credits; how many."""
        return self.window.grant(writer, self.size)

    def return_credit(self, writer: Hashable, count: int) -> Commands:
        """Take back credits that a writer returns."""
        self.window.return_credit(writer, count)
        return self.advance()

    def remove_writer(self, writer: Hashable) -> Commands:
        """Take back the credits of a writer that is gone; its offers stay."""
        self.window.remove_writer(writer)
        self.bypass.forget(writer)
        return self.advance()

    def close_writers(self) -> Commands:
        """End: no end that writes is held any more, in any process."""
        self.writers_gone = True
        return self.advance()

    # -- readers

    def add_reader(self, reader: Hashable, progress: Callable[[], Progress] | None = None) -> None:
        """Add a reader, unless it is known; ``progress`` as for :class:`InFlight`."""
        if reader not in self._in_flight:
            self._in_flight[reader] = InFlight() if progress is None else InFlight(progress)

    def request(self, request: Request, settled: int = 0) -> Commands:
        """Request items; the reader has handed out all up to number ``settled``.

        Raises:
            WireError: it was delivered fewer.
        """
        if request.reader is not None:
            self.add_reader(request.reader)
            self._in_flight[request.reader].settle(settled)
            self.pollers.forget(request.reader)
        self._asked = self._asked + 1 if request.reader == self._asker else 0
        self._asker = request.reader
        # kept requests must not get the items that this one waits for
        out = end_requests(self._waiting, None, kept=True)
        self._waiting.append(request)
        return out + self.advance()

    def set_owner_polls(self, flag: bool) -> Commands:
        """Note whether threads of the owner poll a descriptor."""
        self.pollers.owner_polls = flag
        return end_requests(self._waiting, None, kept=True) + self.advance()

    def settle(self, reader: Hashable, upto: int) -> Commands:
        """Settle a reader's items up to number ``upto``, which it has handed out.

        Raises:
            WireError: it was delivered fewer.
        """
        in_flight = self._in_flight.get(reader)
        if in_flight is None:
            return []
        in_flight.settle(upto)
        return self.advance()

    def give_back(self, reader: Hashable, after: int, upto: int, number: int = 0) -> Commands:
        """Take back a reader's items behind number ``after`` up to ``upto``; settle those before.

        Args:
            reader: who gives them back.
            after: number of the last item that it has handed out.
            upto: number of the last item that it has received.
            number: of the bypass that it left; 0 for none.

        Raises:
            WireError: it was delivered fewer, or there is no such bypass.
        """
        in_flight, bypass = self._in_flight.get(reader), self.bypass
        if in_flight is None:
            return []
        if not number:
            self._put_back(in_flight.give_back(after, upto))
        elif number != bypass.number or reader != bypass.reader or not bypass.is_open:
            msg = f"a reader leaves bypass {number}, which is not open"
            raise WireError(msg)
        else:
            self._put_back(in_flight.leave_bypass(after, upto) + bypass.end(after))
        # a kept request would get them again at once
        return end_requests(self._waiting, reader, kept=True) + self.advance()

    def cancel(self, request: Request) -> bool:
        """Remove a waiting request; False where it was answered already."""
        try:
            self._waiting.remove(request)
        except ValueError:
            return False
        return True

    def cancel_all(self, reader: Hashable) -> Commands:
        """Answer all requests of a reader, which waits no more."""
        return end_requests(self._waiting, reader, kept=False)

    def remove_reader(self, reader: Hashable) -> Commands:
        """Remove a reader that closed or died; items that it had not handed out come back."""
        in_flight = self._in_flight.pop(reader, None)
        if in_flight is None:
            return []
        end_requests(self._waiting, reader, kept=False)
        self.pollers.forget(reader)
        back = in_flight.unconsumed()
        if reader == self.bypass.reader:
            back += self.bypass.end()
        self._put_back(back)
        if self.readers_gone:
            return self._drop()
        return self.advance()

    def close_readers(self) -> Commands:
        """Drop all items: no end that reads is held any more, in any process."""
        self.readers_gone = True
        return self._drop()

    def close_bypass(self) -> Commands:
        """Have the reader leave the bypass, if one is open."""
        out = Commands()
        bypass = self.bypass
        in_flight = self._in_flight[bypass.reader] if bypass.is_open else None
        if in_flight is not None and not in_flight.recalled:
            in_flight.recalled = True
            out.append(Recall(self.bypass.reader))
            # meanwhile, nobody is to get items that come after those
            bypass.holds = 2
            self._start_timer(out)
        return out

    # -- inside

    def on_timer(self) -> Commands:
        """Expire requests and offers, recall prefetched items; a :class:`StartTimer` is due."""
        self._timer_is_set = False
        out: Commands = self.window.expire()
        # a reader that is stopped stops nobody else
        self.bypass.holds = max(0, self.bypass.holds - 1)
        if self.bypass.holds:
            self._start_timer(out)
        if not self.available:
            out += expire_requests(self._waiting)
            if self.pollers.owner_polls or any(map(self._needs_recall, self._waiting)):
                out += recall(self._in_flight)
        return out + self.advance()

    def advance(self) -> Commands:
        """Admit offers and answer requests as far as possible; see to those that wait."""
        out: Commands = []
        while self._admit(out) | self._serve(out):
            continue
        out += self.pollers.on_available(self.available)
        if self._waiting or self.pollers.owner_polls:
            self._resolve_waiting(out)
        if self.bypass.is_open:
            self._close_bypass(out)
        if self.window.waiting:
            out += self.window.revoke()
            if self.window.is_urgent:
                self._start_timer(out)
        return out

    def _admit(self, out: Commands) -> bool:
        if not self.window.waiting:
            return False
        admitted, accepted = self.window.admit(self.size, self._bytes)
        self._let_in(admitted)
        out += accepted
        return bool(admitted or accepted)

    def _let_in(self, items: Iterable[Item]) -> None:
        self._fresh.extend(items)
        self._bytes += sum(map(len, items))

    def _serve(self, out: Commands) -> bool:
        changed = False
        while self._waiting and self.available and not self.bypass.holds:
            request = self._waiting.popleft()
            changed = True
            if request.peek:
                out.append(Deliver(request, 0, []))
                continue
            if request.mode is Mode.STANDING and self._is_shared:
                out.append(self.pollers.notify(request))
                continue
            positioned = self._take(self._count_for(request))
            items = [item for _, item in positioned]
            if request.reader is None:
                out.append(Deliver(request, 0, items))
                continue
            first = self._in_flight[request.reader].deliver(positioned)
            request.max_items -= len(items)
            request.kept = self._stays_open(request, items)
            if request.kept:
                self._waiting.append(request)
            out.append(Deliver(request, first, items, request.kept))
        return changed

    def _stays_open(self, request: Request, items: list[Item]) -> bool:
        """True where the only reader that asks is to get the next items without another request."""
        alone = self._asks_alone and not (self._waiting or self.available)
        return alone and self._may_stay(request, sum(map(len, items)))

    @staticmethod
    def _may_stay(request: Request, size: int) -> bool:
        small = request.max_items > 0 and size <= _KEEP_OPEN_BYTES
        return small and request.mode is not Mode.NOWAIT

    def _count_for(self, request: Request) -> int:
        """Items to deliver for a request: a fair share among readers, limited in bytes."""
        available = self.available
        fair = max(1, available // max(1, len(self._in_flight)))
        light = max(1, MAX_DELIVERY * available // max(1, self._bytes))
        count = min(request.max_items, fair, light, available)
        return count_to_none(self._returned_items, self._fresh, count) if self._is_shared else count

    @property
    def _is_shared(self) -> bool:
        """True where several readers may wait for the same items: none is sent any unasked."""
        return len(self._in_flight) != 1 or self.pollers.owner_polls

    @property
    def _asks_alone(self) -> bool:
        """True where one reader alone asks for items, and others that may have none now."""
        is_alone = len(self._in_flight) == 1 or self._asked >= _ALONE_AFTER
        return is_alone and not self.pollers.owner_polls

    def _needs_recall(self, request: Request) -> bool:
        """True where other readers are to give back prefetched items for a request."""
        return request.is_urgent or (request.mode is Mode.STANDING and self._is_shared)

    def _take(self, count: int) -> list[Positioned]:
        positioned: list[Positioned] = []
        while self._returned_items and len(positioned) < count:
            positioned.append(self._returned_items.popleft())
        rest = count - len(positioned)
        if rest:
            popped = [self._fresh.popleft() for _ in range(rest)]
            positioned += zip(range(self._first, self._first + rest), popped, strict=True)
            self._first += rest
        self._bytes -= sum(len(item) for _, item in positioned)
        return positioned

    def _put_back(self, positioned: Sequence[Positioned]) -> None:
        if positioned:
            self._bytes += sum(len(item) for _, item in positioned)
            self._returned_items = deque(merge(self._returned_items, positioned, key=_position))

    def _prefetched(self, *, without: Hashable = None) -> int:
        bypass = self.bypass
        in_bypass = bypass.trim() if bypass.is_open and bypass.reader != without else 0
        return in_bypass + sum(
            in_flight.prefetched() for name, in_flight in self._in_flight.items() if name != without
        )

    def _open_bypass(self, count: int) -> Commands:
        """Have the reader take item ``count`` from the bypass that is offered, where it waits, and nobody else."""
        waiting, reader = self._waiting, self.bypass.reader
        in_flight = self._in_flight.get(reader)
        if in_flight is None:
            return []
        if len(waiting) != 1 or self.available or self.window.waiting or in_flight.recalled:
            return []
        request = waiting[0]
        if request.reader != reader or request.mode is not Mode.WAIT or not self._asks_alone:
            return []
        waiting.clear()
        self.bypass.open(in_flight.delivered + 1 - count, in_flight.progress)
        return [OpenBypass(request, self.bypass.number, count)]

    def _close_bypass(self, out: Commands) -> None:
        """Have the reader leave the bypass where others ask for items, or put some."""
        is_wanted = self._waiting or self.available or self.window.waiting
        if is_wanted or self.pollers.owner_polls:
            out += self.close_bypass()

    def _resolve_waiting(self, out: Commands) -> None:
        """Recall prefetched items for waiting requests, or answer that there is none."""
        can_come = self.pollers.owner_polls and not self.available and self._prefetched() > 0
        at_once = False
        for request in list(self._waiting):
            if self.bypass.holds or self._prefetched(without=request.reader):
                at_once = at_once or request.mode is Mode.NOWAIT
                can_come = can_come or self._needs_recall(request)
            elif self.writers_gone and not self.window.waiting:
                self._waiting.remove(request)
                out.append(End(request))
            elif request.mode is Mode.NOWAIT:
                self._waiting.remove(request)
                out.append(Nothing(request))
        if at_once:
            out += recall(self._in_flight)
        # before it is recalled, a reader has a moment to hand its items out
        if at_once or (can_come and not_recalled(self._in_flight)):
            self._start_timer(out)

    def _start_timer(self, out: Commands) -> None:
        if not self._timer_is_set:
            self._timer_is_set = True
            out.append(StartTimer())

    def _drop(self) -> Commands:
        waiting = list(self.window.waiting)
        self.window.waiting.clear()
        dropped = [item for offer in waiting for item in offer.items]
        dropped += self._fresh
        dropped += (item for _, item in self._returned_items)
        self._fresh.clear()
        self._returned_items.clear()
        self._bytes = 0
        return [*map(Broken, waiting), *([Drop(dropped)] if dropped else ())]
