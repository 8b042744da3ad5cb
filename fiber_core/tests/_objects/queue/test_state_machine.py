"""Random histories of a lane whose readers die: nothing is lost, nothing is handed out twice."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fiber._objects.protocol import Mode
from fiber._objects.queue.requests import (
    Accepted,
    Drop,
    Give,
    Nothing,
    Offer,
    Recall,
    Refused,
    Request,
    Revoke,
)
from fiber._objects.queue.state import Lane


class Reader:
    """Speaks as a process elsewhere does: what it says and hears takes its time."""

    def __init__(self, *, near: bool) -> None:
        self.near = near
        self.buffer: deque[bytes] = deque()
        self.delivered = self.returned = 0
        self.notes = [0, 0, 0]
        self.handed_out: dict[bytes, int] = {}
        self.asking = False
        self.says: deque[tuple] = deque()
        self.hears: deque[tuple] = deque()

    def progress(self):
        return tuple(self.notes)


class Histories(RuleBasedStateMachine):
    @initialize(maxsize=st.sampled_from([0, 0, 3, 12]))
    def begin(self, maxsize):
        self.maxsize = maxsize
        self.lane = Lane(maxsize=maxsize)
        self.readers: dict[int, Reader] = {}
        self.made = self.names = 0
        self.accepted: set[bytes] = set()
        self.handed_out: list[bytes] = []
        # handed out by readers that nobody could see, and that died before they had told it
        self.doubtful: set[bytes] = set()
        self.offers: dict[int, list[bytes]] = {}
        # what writers may send without asking
        self.aside = {"v": 0, "w": 0}
        self.revoked: set[str] = set()
        self.watching = False
        for _ in range(6):
            self.put_here()
        self.join(near=True)
        self.join(near=False)

    def carry(self, instructions):
        for one in instructions:
            if isinstance(one, Give) and one.request.reader is None:
                self.handed_out += one.items
            elif isinstance(one, Give):
                heard = ("items", one.first, one.items, one.kept)
                self.readers[one.request.reader].hears.append(heard)
            elif isinstance(one, Nothing) and one.request.reader is not None:
                self.readers[one.request.reader].hears.append(("items", 0, [], False))
            elif isinstance(one, Recall):
                self.readers[one.reader].hears.append(("recall",))
            elif isinstance(one, Accepted):
                self.accepted |= set(self.offers.pop(one.offer.number))
                if one.offer.writer in self.aside:
                    self.aside[one.offer.writer] += self.lane.grant(one.offer.writer)
            elif isinstance(one, Refused):
                self.offers.pop(one.offer.number)
            elif isinstance(one, Revoke):
                self.revoked.add(one.writer)
            elif isinstance(one, Drop):
                raise AssertionError("nothing is dropped while there are readers")
            else:
                self.watching = True

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
        self.carry(self.lane.offer(Offer(writer, batch, self.made, wait=wait)))

    @rule(writer=st.sampled_from(["v", "w"]), data=st.data())
    def send(self, writer, data):
        """A writer sends what it need not ask for."""
        if self.aside[writer]:
            count = data.draw(st.integers(1, self.aside[writer]))
            self.aside[writer] -= count
            batch = self.batch(count)
            self.carry(self.lane.put(Offer(writer, batch, self.made)))

    @precondition(lambda self: self.revoked)
    @rule()
    def give_up(self):
        writer = self.revoked.pop()
        count, self.aside[writer] = self.aside[writer], 0
        self.carry(self.lane.give_up(writer, count))

    @invariant()
    def no_more_than_maxsize(self):
        if self.maxsize:
            assert self.lane.size + sum(self.aside.values()) <= self.maxsize

    @rule()
    def put_here(self):
        item = str(self.made).encode()
        if self.lane.put_now(item):
            self.made += 1
            self.accepted.add(item)

    @rule()
    def take_here(self):
        item = self.lane.take_now()
        if item is not None:
            self.handed_out.append(item)
            self.carry(self.lane.advance())

    @precondition(lambda self: len(self.readers) < 4)
    @rule(near=st.booleans())
    def join(self, near):
        reader = self.readers[self.names] = Reader(near=near)
        self.lane.open(self.names, reader.progress if near else None)
        self.names += 1

    @rule(data=st.data(), want=st.integers(1, 6), mode=st.sampled_from(list(Mode)))
    def ask(self, data, want, mode):
        name = self.some(data, lambda reader: not reader.asking)
        if name is not None:
            reader = self.readers[name]
            reader.asking = True
            reader.says.append(("ask", want, mode, reader.returned))

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
    def tell(self, data):
        name = self.some(data)
        if name is not None:
            self.readers[name].says.append(("settle", self.readers[name].returned))

    @rule(data=st.data())
    def hear(self, data):
        """What the owner said arrives at a reader."""
        name = self.some(data, lambda reader: bool(reader.hears))
        if name is None:
            return
        reader = self.readers[name]
        kind, *rest = reader.hears.popleft()
        if kind == "recall":
            after, upto = reader.returned, reader.delivered
            reader.buffer.clear()
            reader.returned = upto
            reader.notes[:] = [upto, after, upto]
            reader.says.append(("give", after, upto))
            return
        first, items, kept = rest
        reader.asking = kept
        if items:
            assert first == reader.delivered + 1
            reader.delivered += len(items)
            reader.buffer.extend(items)

    @rule(data=st.data())
    def listen(self, data):
        """What a reader said arrives at the owner."""
        name = self.some(data, lambda reader: bool(reader.says))
        if name is None:
            return
        kind, *rest = self.readers[name].says.popleft()
        if kind == "ask":
            want, mode, settled = rest
            self.carry(self.lane.ask(Request(name, 0, want, mode), settled))
        elif kind == "settle":
            self.carry(self.lane.settle(name, *rest))
        else:
            self.carry(self.lane.give_back(name, *rest))

    @rule(data=st.data())
    def die(self, data):
        """A reader is killed: what it was about to say is never heard."""
        name = self.some(data)
        if name is not None:
            self.kill(name)

    def kill(self, name):
        reader = self.readers.pop(name)
        if not reader.near and name in self.lane.readers:
            known = self.lane._books[name].settled
            self.doubtful |= {i for i, number in reader.handed_out.items() if number > known}
        self.carry(self.lane.lose(name))

    @precondition(lambda self: self.watching)
    @rule()
    def time_passes(self):
        self.watching = False
        self.carry(self.lane.overdue())

    def teardown(self):
        if not hasattr(self, "lane"):
            return
        for name in list(self.readers):
            self.kill(name)
        for writer in self.aside:
            self.carry(self.lane.lose_writer(writer))
        self.aside = dict.fromkeys(self.aside, 0)
        while (item := self.lane.take_now()) is not None:
            self.handed_out.append(item)
            self.carry(self.lane.advance())
        assert self.lane.is_settled
        assert self.offers == {}
        assert set(self.handed_out) == self.accepted
        again = [item for item in self.handed_out if self.handed_out.count(item) > 1]
        assert set(again) <= self.doubtful


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
