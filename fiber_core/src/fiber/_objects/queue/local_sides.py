"""The sides of a lane for threads of its owner: no wire in between."""

from __future__ import annotations

import queue
from collections import deque
from typing import TYPE_CHECKING

from fiber._objects.protocol import Mode, Outcome, Word
from fiber._objects.queue.messages import Item
from fiber._objects.queue.ready_fd import Bell
from fiber._objects.waiting import Bidder, Waiter, pass_gate

if TYPE_CHECKING:
    from fiber._objects.queue.channel import Channel


class LocalSource:
    """The reading side."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._lane = channel.lanes[number]

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item, see :class:`~fiber._objects.handle_actions.Source`."""
        channel, lane = self._channel, self._lane
        with channel.lock:
            item = lane.take_now()
            if item is not None:
                self._taken()
                return item
            waiter = Waiter(None, mode=Mode.WAIT if block else Mode.NOWAIT)
            channel.carry(self._number, lane.ask(waiter))
        self._wait(waiter, timeout if block else None)
        return self._result(waiter)

    def ready(self, timeout: float | None) -> bool:
        """True where :meth:`take` would return or raise EOFError."""
        channel, lane = self._channel, self._lane
        with channel.lock:
            if lane.available or lane.has_ended:
                return True
            now = timeout is not None and timeout <= 0
            waiter = Waiter(None, mode=Mode.NOWAIT if now else Mode.WAIT, peek=True)
            channel.carry(self._number, lane.ask(waiter))
        self._wait(waiter, None if now else timeout)
        return waiter.answer in (Word.ITEMS, Word.END)

    def bell(self) -> Bell:
        """What tells of items."""
        with self._channel.lock:
            return self._channel.bell(self._number)

    def _wait(self, waiter: Waiter, timeout: float | None) -> None:
        try:
            pass_gate(waiter.gate, timeout)
        except BaseException:
            # an interrupted wait takes nothing with it
            with self._channel.lock:
                self._forget(waiter)
                if waiter.item is not None:
                    self._channel.carry(self._number, self._lane.untake(waiter.item))
            raise
        if waiter.answer is None:
            with self._channel.lock:
                self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        if waiter.answer is None:
            self._lane.cancel(waiter)

    def _taken(self) -> None:
        if self._lane.holds or self._lane.watchers:
            self._channel.carry(self._number, self._lane.advance())
        else:
            self._channel.changed(self._number)

    @staticmethod
    def _result(waiter: Waiter) -> Item:
        if waiter.item is not None:
            return waiter.item
        if waiter.answer is Word.END:
            raise EOFError
        raise queue.Empty


class LocalSink:
    """The writing side."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._lane = channel.lanes[number]

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Hand an item over, see :class:`~fiber._objects.handle_actions.Sink`."""
        channel, lane = self._channel, self._lane
        with channel.lock:
            if lane.put_now(item):
                channel.changed(self._number)
                return
            bidder = Bidder(None, deque((item,)), wait=block)
            channel.carry(self._number, lane.offer(bidder))
        if bidder.outcome is None:
            self._wait(bidder, timeout if block else None)
        if bidder.outcome is Outcome.BROKEN:
            msg = f"nobody reads this {channel.shape.name} any more"
            raise BrokenPipeError(msg)
        if bidder.outcome is not Outcome.ACCEPTED:
            raise queue.Full

    def flush(self) -> None:
        """Nothing is on its way."""

    def deliver(self) -> None:
        """Nothing is on its way."""

    def abandon(self) -> None:
        """Nothing is on its way."""

    def _wait(self, bidder: Bidder, timeout: float | None) -> None:
        try:
            pass_gate(bidder.gate, timeout)
        finally:
            with self._channel.lock:
                if bidder.outcome is None:
                    self._lane.gate.withdraw(bidder)
