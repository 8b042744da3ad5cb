"""Random histories of a queue whose readers die: nothing is lost, nothing is handed out twice."""

from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import (
    Accepted,
    Deliver,
    Drop,
    Nothing,
    Offer,
    OpenBypass,
    Recall,
    Refused,
    Request,
    Revoke,
)
from fiber._objects.queue.state import QueueState

# hypothesis makes up many histories, which takes a busy machine long
pytestmark = pytest.mark.timeout(600)


class Socket:
    """What the kernel has of a bypass: numbered items."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: deque[tuple[int, bytes]] = deque()
        self.is_closed = False
        self.count = 0


class Reader:
    """A reader in another process: messages in both directions take their time."""

    def __init__(self, *, is_local: bool) -> None:
        self.is_local = is_local
        self.buffer: deque[bytes] = deque()
        self.delivered = self.returned = 0
        self.notes = [0, 0, 0]
        self.handed_out: dict[bytes, int] = {}
        self.asking = False
        self.sent: deque[tuple] = deque()
        self.received: deque[tuple] = deque()
        # the end of a bypass that it has, number of the one that is open, number of the last item before it
        self.socket: Socket | None = None
        self.open = self.base = 0

    def give_back(self):
        after, upto, number = self.returned, self.delivered, self.open
        self.buffer.clear()
        self.returned = upto
        if after < upto:
            self.notes[:] = [upto, after, upto]
        self.sent.append(("give", after, upto, number))
        if self.socket is not None:
            self.socket.is_closed = True
        self.socket, self.open = None, 0

    def progress(self):
        return tuple(self.notes)


class Histories(RuleBasedStateMachine):
    @initialize(maxsize=st.sampled_from([0, 0, 3, 12]))
    def begin(self, maxsize):
        self.begin_with(maxsize)

    def begin_with(self, maxsize):
        self.maxsize = maxsize
        self.state = QueueState(maxsize=maxsize)
        self.readers: dict[int, Reader] = {}
        self.made = self.names = 0
        self.accepted: set[bytes] = set()
        self.handed_out: list[bytes] = []
        # handed out by remote readers that died before they had reported it
        self.doubtful: set[bytes] = set()
        self.offers: dict[int, list[bytes]] = {}
        # credits of writers
        self.credit = {"v": 0, "w": 0}
        self.revoked: set[str] = set()
        self.timer_is_set = False
        # the end of a bypass that a writer has, its messages, items whose puts were interrupted
        self.socket: Socket | None = None
        self.sent: deque[tuple] = deque()
        self.interrupted: set[bytes] = set()
        for _ in range(6):
            self.owner_puts()
        self.join(is_local=True)
        self.join(is_local=False)

    def execute(self, commands):
        for one in commands:
            if isinstance(one, Deliver) and one.request.reader is None:
                self.handed_out += one.items
            elif isinstance(one, Accepted) and one.offer.writer == "bypass":
                self.accepted |= self.offers.pop(one.offer.number, set())
            elif isinstance(one, Deliver):
                answer = ("items", one.first, one.items, one.kept)
                self.readers[one.request.reader].received.append(answer)
            elif isinstance(one, Nothing) and one.request.reader is not None:
                self.readers[one.request.reader].received.append(("items", 0, [], False))
            elif isinstance(one, OpenBypass):
                answer = ("open", one.number, one.count)
                self.readers[one.request.reader].received.append(answer)
            elif isinstance(one, Recall):
                self.readers[one.reader].received.append(("recall",))
            elif isinstance(one, Accepted):
                self.accepted |= set(self.offers.pop(one.offer.number))
                if one.offer.writer in self.credit:
                    self.credit[one.offer.writer] += self.state.grant(one.offer.writer)
            elif isinstance(one, Refused):
                self.offers.pop(one.offer.number)
            elif isinstance(one, Revoke):
                self.revoked.add(one.writer)
            elif isinstance(one, Drop):
                raise AssertionError("nothing is dropped while there are readers")
            else:
                self.timer_is_set = True

    def some(self, data, condition=lambda reader: True):
        names = [name for name, reader in self.readers.items() if condition(reader)]
        return data.draw(st.sampled_from(names)) if names else None

    def batch(self, count):
        batch = [str(self.made + n).encode() for n in range(count)]
        self.made += count
        self.offers[self.made] = list(batch)
        return deque(batch)

    @rule(count=st.integers(1, 5), wait=st.booleans(), writer=st.sampled_from(["u", "v", "w"]))
    def offer(self, count, wait, writer):
        batch = self.batch(count)
        self.execute(self.state.offer(Offer(writer, batch, self.made, wait=wait)))

    @rule(writer=st.sampled_from(["v", "w"]), data=st.data())
    def send(self, writer, data):
        """A writer sends items for which it has credits."""
        if self.credit[writer]:
            count = data.draw(st.integers(1, self.credit[writer]))
            self.credit[writer] -= count
            batch = self.batch(count)
            self.execute(self.state.put(Offer(writer, batch, self.made)))

    @precondition(lambda self: self.revoked)
    @rule()
    def return_credit(self):
        writer = self.revoked.pop()
        count, self.credit[writer] = self.credit[writer], 0
        self.execute(self.state.return_credit(writer, count))

    @invariant()
    def no_more_than_maxsize(self):
        if self.maxsize:
            assert self.state.size + sum(self.credit.values()) <= self.maxsize

    @rule()
    def owner_puts(self):
        item = str(self.made).encode()
        if self.state.put_now(item):
            self.made += 1
            self.accepted.add(item)

    @rule()
    def owner_takes(self):
        item = self.state.take_now()
        if item is not None:
            self.handed_out.append(item)
            self.execute(self.state.advance())

    @precondition(lambda self: len(self.readers) < 4)
    @rule(is_local=st.booleans())
    def join(self, is_local):
        reader = self.readers[self.names] = Reader(is_local=is_local)
        self.state.add_reader(self.names, reader.progress if is_local else None)
        self.names += 1

    @rule(data=st.data(), max_items=st.integers(1, 6), mode=st.sampled_from(list(Mode)))
    def request(self, data, max_items, mode):
        name = self.some(data, lambda reader: not reader.asking)
        if name is not None:
            self.request_by(name, max_items, mode)

    def request_by(self, name, max_items, mode):
        reader = self.readers[name]
        reader.asking = True
        if reader.open:
            reader.give_back()
        reader.sent.append(("ask", max_items, mode, reader.returned))

    @rule(data=st.data())
    def hand_out(self, data):
        name = self.some(data, lambda reader: bool(reader.buffer))
        if name is not None:
            self.hand_out_of(self.readers[name])

    def hand_out_of(self, reader):
        item = reader.buffer.popleft()
        reader.returned += 1
        reader.notes[0] = reader.returned
        reader.handed_out[item] = reader.returned
        self.handed_out.append(item)

    def hand_out_all(self, reader):
        while reader.buffer:
            self.hand_out_of(reader)

    @rule(data=st.data())
    def report(self, data):
        name = self.some(data, lambda reader: not reader.open)
        if name is not None:
            self.readers[name].sent.append(("settle", self.readers[name].returned))

    @rule(data=st.data())
    def receive(self, data):
        """A message of the owner arrives at a reader."""
        name = self.some(data, lambda reader: bool(reader.received))
        if name is not None:
            self.reader_receives(self.readers[name])

    def reader_receives(self, reader):
        kind, *rest = reader.received.popleft()
        if kind == "recall":
            reader.give_back()
            return
        if kind == "open":
            number, count = rest
            reader.asking = False
            reader.open, reader.base = number, reader.delivered + 1 - count
            if reader.socket is None or reader.socket.number != number:
                reader.give_back()
            return
        first, items, kept = rest
        reader.asking = kept
        if items:
            assert first == reader.delivered + 1
            reader.delivered += len(items)
            reader.buffer.extend(items)

    @rule(data=st.data())
    def owner_receives(self, data):
        """A message of a reader arrives at the owner."""
        name = self.some(data, lambda reader: bool(reader.sent))
        if name is not None:
            self.owner_receives_of(name)

    def owner_receives_of(self, name):
        kind, *rest = self.readers[name].sent.popleft()
        if kind == "ask":
            max_items, mode, settled = rest
            self.execute(self.state.request(Request(name, 0, max_items, mode), settled))
        elif kind == "settle":
            self.execute(self.state.settle(name, *rest))
        else:
            self.execute(self.state.give_back(name, *rest))

    # -- a bypass between one writer and one reader; the writer's messages take their time, too

    @precondition(lambda self: not self.maxsize and not self.state.bypass.is_open)
    @rule(data=st.data())
    def offer_bypass(self, data):
        """One reader alone has asked for some time, and waits."""
        name = self.some(data, lambda reader: reader.is_local and not reader.open)
        if name is None:
            return
        self.settle()
        reader = self.readers[name]
        for _ in range(10):
            if not reader.asking:
                self.request_by(name, 3, Mode.WAIT)
            self.sent.append((self.new_item(), 0, 0))
            self.settle()
            self.hand_out_all(reader)
        if not reader.asking:
            self.request_by(name, 3, Mode.WAIT)
        self.settle()
        number = self.state.bypass.offer("bypass", name)
        self.socket = reader.socket = Socket(number)

    def settle(self):
        """Everything arrives, and is handed out."""
        while True:
            while self.sent:
                self.owner_receives_of_writer()
            for name, reader in self.readers.items():
                while reader.received:
                    self.reader_receives(reader)
                self.hand_out_all(reader)
                while reader.sent:
                    self.owner_receives_of(name)
            if self.timer_is_set:
                self.time_passes()
            self.owner_takes()
            is_quiet = not (self.sent or self.state.available or self.timer_is_set)
            if is_quiet and not any(r.received or r.sent for r in self.readers.values()):
                return

    def new_item(self):
        self.made += 1
        return str(self.made - 1).encode()

    @rule(data=st.data(), is_interrupted=st.integers(0, 9))
    def put_beside(self, data, is_interrupted):
        if self.maxsize:
            return
        item, socket = self.new_item(), self.socket
        if socket is None or socket.is_closed:
            self.sent.append((item, 0, 0))
            return
        socket.count += 1
        socket.items.append((socket.count, item))
        if is_interrupted == 0:
            self.interrupted.add(item)
        else:
            self.sent.append((item, socket.number, socket.count))

    @rule()
    def writer_leaves(self):
        self.socket = None

    @rule(is_lost=st.integers(0, 9), data=st.data())
    def receive_beside(self, is_lost, data):
        name = self.some(data, lambda reader: reader.open and not reader.buffer)
        if name is None:
            return
        reader = self.readers[name]
        wanted = reader.delivered + 1 - reader.base
        while reader.socket.items:
            found, item = reader.socket.items.popleft()
            if found < wanted:
                continue
            if found > wanted or is_lost == 0:
                # what was received is lost, by an interrupt
                reader.give_back()
                return
            reader.delivered += 1
            reader.buffer.append(item)
            return
        if reader.socket is not self.socket:
            reader.give_back()

    @rule()
    def owner_receives_of_writer(self):
        if self.sent:
            item, number, count = self.sent.popleft()
            self.made += 1
            offer = Offer("bypass", deque([item]), self.made)
            self.offers[self.made] = {item}
            if number:
                self.execute(self.state.put_copy(offer, number, count))
            else:
                self.execute(self.state.put(offer))

    @rule(data=st.data())
    def pass_items_on(self, data):
        """What usually happens, several times."""
        for _ in range(data.draw(st.integers(1, 5))):
            self.put_beside(data, 1)
            self.owner_receives_of_writer()
            self.receive(data)
            self.receive_beside(1, data)
            self.hand_out(data)

    @rule(data=st.data())
    def die(self, data):
        """A reader is killed: its messages in transit are lost."""
        name = self.some(data)
        if name is not None:
            self.kill(name)

    def kill(self, name):
        reader = self.readers.pop(name)
        if reader.socket is not None:
            reader.socket.is_closed = True
        if not reader.is_local and name in self.state.readers:
            known = self.state._in_flight[name].settled
            self.doubtful |= {i for i, number in reader.handed_out.items() if number > known}
        self.execute(self.state.remove_reader(name))

    @precondition(lambda self: self.timer_is_set)
    @rule()
    def time_passes(self):
        self.timer_is_set = False
        self.execute(self.state.on_timer())

    def teardown(self):
        if not hasattr(self, "state"):
            return
        while self.sent:
            self.owner_receives_of_writer()
        for name in list(self.readers):
            self.kill(name)
        for writer in self.credit:
            self.execute(self.state.remove_writer(writer))
        self.credit = dict.fromkeys(self.credit, 0)
        while (item := self.state.take_now()) is not None:
            self.handed_out.append(item)
            self.execute(self.state.advance())
        assert self.state.is_settled
        assert self.offers == {}
        assert set(self.handed_out) - self.interrupted == self.accepted
        again = [item for item in self.handed_out if self.handed_out.count(item) > 1]
        assert set(again) <= self.doubtful


class HistoriesOfABypass(Histories):
    """The same, which begin with a bypass."""

    @initialize(data=st.data())
    def begin(self, data):
        self.begin_with(0)
        self.offer_bypass(data)
        self.pass_items_on(data)


QUICK = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
TestHistories.settings = QUICK
TestHistoriesOfABypass = HistoriesOfABypass.TestCase
TestHistoriesOfABypass.settings = QUICK
