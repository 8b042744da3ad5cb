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
    Recall,
    Refused,
    Request,
    Revoke,
)
from fiber._objects.queue.state import QueueState

# hypothesis makes up many histories, which takes a busy machine long
pytestmark = pytest.mark.timeout(600)


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

    def progress(self):
        return tuple(self.notes)


class Histories(RuleBasedStateMachine):
    @initialize(maxsize=st.sampled_from([0, 0, 3, 12]))
    def begin(self, maxsize):
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
        for _ in range(6):
            self.owner_puts()
        self.join(is_local=True)
        self.join(is_local=False)

    def execute(self, commands):
        for one in commands:
            if isinstance(one, Deliver) and one.request.reader is None:
                self.handed_out += one.items
            elif isinstance(one, Deliver):
                answer = ("items", one.first, one.items, one.kept)
                self.readers[one.request.reader].received.append(answer)
            elif isinstance(one, Nothing) and one.request.reader is not None:
                self.readers[one.request.reader].received.append(("items", 0, [], False))
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
            reader = self.readers[name]
            reader.asking = True
            reader.sent.append(("ask", max_items, mode, reader.returned))

    @rule(data=st.data())
    def hand_out(self, data):
        name = self.some(data, lambda reader: bool(reader.buffer))
        if name is not None:
            reader = self.readers[name]
            item = reader.buffer.popleft()
            reader.returned += 1
            reader.notes[0] = reader.returned
            reader.handed_out[item] = reader.returned
            self.handed_out.append(item)

    @rule(data=st.data())
    def report(self, data):
        name = self.some(data)
        if name is not None:
            self.readers[name].sent.append(("settle", self.readers[name].returned))

    @rule(data=st.data())
    def receive(self, data):
        """A message of the owner arrives at a reader."""
        name = self.some(data, lambda reader: bool(reader.received))
        if name is None:
            return
        reader = self.readers[name]
        kind, *rest = reader.received.popleft()
        if kind == "recall":
            after, upto = reader.returned, reader.delivered
            reader.buffer.clear()
            reader.returned = upto
            reader.notes[:] = [upto, after, upto]
            reader.sent.append(("give", after, upto))
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
        if name is None:
            return
        kind, *rest = self.readers[name].sent.popleft()
        if kind == "ask":
            max_items, mode, settled = rest
            self.execute(self.state.request(Request(name, 0, max_items, mode), settled))
        elif kind == "settle":
            self.execute(self.state.settle(name, *rest))
        else:
            self.execute(self.state.give_back(name, *rest))

    @rule(data=st.data())
    def die(self, data):
        """A reader is killed: its messages in transit are lost."""
        name = self.some(data)
        if name is not None:
            self.kill(name)

    def kill(self, name):
        reader = self.readers.pop(name)
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
        assert set(self.handed_out) == self.accepted
        again = [item for item in self.handed_out if self.handed_out.count(item) > 1]
        assert set(again) <= self.doubtful


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
