"""Barriers in memory that the processes of one host share.

A *round* ends when it is opened or broken; its number is the word that parties wait for. How the last 60 rounds
ended is kept, for parties that run late. The owner takes part on behalf of processes that do not map the memory,
and breaks the barrier when a process dies that has it.

Apart from :mod:`~fiber._objects.sync.barrier`, which is about messages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._base.threads import turn
from fiber._objects.sync.monitor import LOOKS, Monitored, Word
from fiber._objects.sync.monitor import SIZE as MONITOR_SIZE
from fiber._objects.sync.wait_queue import Status
from fiber._objects.waiting import Deadline

if TYPE_CHECKING:
    import mmap

# Words of the state, 8 bytes each, behind the monitor.
_PARTIES = 0
#: parties that have arrived in this round
_ARRIVED = 1
_ROUND = 2
#: a bit for each of the last rounds, the last one's lowest: 1 where it was broken
_ENDS = 3
_IS_BROKEN = 4
#: number of the action that is running, 0 for none; and of the last one
_ACTION, _ACTIONS = 5, 6
#: 1 where a party that came during the action waits no more
_IS_LATE = 7
_WORDS = 8
#: bytes of a barrier
SIZE = MONITOR_SIZE + 8 * _WORDS
_ENDS_MASK = 2**60 - 1


@values.define(eq=False)
class Arrival:
    """Party at a barrier."""

    #: True where this party could run the action as the last to arrive
    has_action: bool
    #: outcome; None while it waits
    status: Status | None = None
    #: index of the party, or number of the action to run
    number: int = 0
    #: number of the round whose end it waits for
    round: int = 0
    #: True where it came during the action, and joins the next round
    is_early: bool = False


class SharedBarrier(Monitored):
    """A barrier in shared memory, as one process uses it.

    Args:
        memory: shared memory, mapped.
        begin: where it begins there, a multiple of 8; :data:`SIZE` bytes.
        parties: number of parties, to make it of zeros; 0 where another process has made it.
    """

    def __init__(self, memory: mmap.mmap, begin: int, parties: int = 0) -> None:
        super().__init__(memory, begin, is_new=parties > 0)
        self._round = Word(memory, begin + MONITOR_SIZE + 8 * _ROUND)
        self._words = memoryview(memory)[begin + MONITOR_SIZE : begin + SIZE].cast("q")
        # those of threads of this process that wait or run the action
        self._arrivals: set[Arrival] = set()
        if parties:
            self._words[_PARTIES] = parties

    # -- for the user's threads

    def arrive(self, timeout: float | None, *, has_action: bool) -> tuple[Status, int]:
        """Arrive and wait; status, and the party's index or the number of the action to run."""
        deadline = Deadline(timeout)
        arrival = Arrival(has_action)
        self._arrivals.add(arrival)
        try:
            self.begin(arrival)
            while arrival.status is None:
                if not self.wait(arrival.round, deadline):
                    self.expire(arrival)
                    # all parties may have arrived in time: then it ends with the action
                    deadline = Deadline(None)
                self.go_on(arrival)
        except BaseException:
            self.give_up(arrival)
            raise
        finally:
            if arrival.status is not Status.RUN_ACTION:
                self._arrivals.discard(arrival)
        return arrival.status, arrival.number

    def action_succeeded(self, number: int) -> Status:
        """Open the barrier after its action; BROKEN if it was broken meanwhile."""
        self._forget_action(number)
        return self._inside(functools.partial(self._end_action, number, succeeded=True))

    def action_failed(self, number: int) -> None:
        """Break the barrier after its action."""
        self._forget_action(number)
        self._inside(functools.partial(self._end_action, number, succeeded=False))

    def _forget_action(self, number: int) -> None:
        for arrival in list(self._arrivals):
            if arrival.status is Status.RUN_ACTION and arrival.number == number:
                self._arrivals.discard(arrival)

    def reset(self) -> None:
        """Break it for the waiting parties and make it usable again."""
        self._inside(functools.partial(self._break, is_broken=False))

    def abort(self) -> None:
        """Break it."""
        self._inside(self._break)

    def state(self) -> tuple[bool, int]:
        """Return whether the barrier is broken, and the number of waiting parties."""
        self.check()
        words = self._words
        return bool(words[_IS_BROKEN]), 0 if words[_ACTION] else words[_ARRIVED]

    def wait(self, number: int, deadline: Deadline) -> bool:
        """Wait until a round has ended; False if not in time."""
        words = self._words
        # several have to come
        for _ in range(2 * LOOKS):
            if words[_ROUND] != number:
                return True
        while True:
            self.check()
            left = deadline.left
            if words[_ROUND] != number:
                return True
            if left == 0:
                return False
            self._round.wait(number, turn(left))

    # -- for one party

    def begin(self, arrival: Arrival) -> None:
        """A party arrives."""
        self._inside(functools.partial(self._begin, arrival))

    def go_on(self, arrival: Arrival) -> None:
        """Look whether a party's round has ended."""
        self._inside(functools.partial(self._look, arrival))

    def expire(self, arrival: Arrival) -> None:
        """A party's timeout has passed: break the barrier, unless all have arrived in time."""
        self._inside(functools.partial(self._expire, arrival))

    def give_up(self, arrival: Arrival) -> None:
        """A party waits no more; an action that it was to run has failed."""
        self._arrivals.discard(arrival)
        if self._lost is None:
            self._inside(functools.partial(self._give_up, arrival))

    # -- with the monitor entered

    def _begin(self, arrival: Arrival) -> None:
        words = self._words
        arrival.is_early = bool(words[_ACTION])
        arrival.round, arrival.number = words[_ROUND], words[_ARRIVED]
        if arrival.is_early:
            return
        if words[_IS_BROKEN]:
            arrival.status = Status.BROKEN
        elif words[_ARRIVED] + 1 < words[_PARTIES]:
            words[_ARRIVED] += 1
        elif arrival.has_action:
            words[_ACTIONS] += 1
            arrival.number = words[_ACTION] = words[_ACTIONS]
            arrival.status = Status.RUN_ACTION
        else:
            arrival.status = Status.OK
            self._open()

    def _look(self, arrival: Arrival) -> None:
        words = self._words
        if arrival.status is not None or words[_ROUND] == arrival.round:
            return
        if arrival.is_early:
            self._begin(arrival)
            return
        was_broken = words[_ENDS] >> (words[_ROUND] - 1 - arrival.round) & 1
        arrival.status = Status.BROKEN if was_broken else Status.OK

    def _expire(self, arrival: Arrival) -> None:
        words = self._words
        if words[_ROUND] != arrival.round or (words[_ACTION] and not arrival.is_early):
            return
        arrival.status = Status.BROKEN
        if arrival.is_early:
            words[_IS_LATE] = 1
        else:
            self._break()

    def _give_up(self, arrival: Arrival) -> None:
        words = self._words
        if arrival.status is Status.RUN_ACTION:
            self._end_action(arrival.number, succeeded=False)
        elif arrival.status is None and words[_ROUND] == arrival.round:
            words[_ARRIVED] -= not (arrival.is_early or words[_ACTION])

    def _open(self) -> None:
        """Release all waiting parties."""
        self._end_round(is_broken_now=False, is_broken=bool(self._words[_IS_LATE]))

    def _break(self, *, is_broken: bool = True) -> None:
        """Report to all waiting parties that the barrier is broken, for good or not."""
        self._end_round(is_broken_now=True, is_broken=is_broken)

    # the parties of a round in which a process died, or was interrupted, can only be told that it is broken
    _repair = _break

    def _end_round(self, *, is_broken_now: bool, is_broken: bool) -> None:
        words = self._words
        words[_ACTION] = words[_ARRIVED] = words[_IS_LATE] = 0
        words[_ENDS] = (words[_ENDS] << 1 | is_broken_now) & _ENDS_MASK
        words[_IS_BROKEN] = is_broken
        words[_ROUND] += 1
        self._round.wake()

    def _end_action(self, number: int, *, succeeded: bool) -> Status:
        if not number or self._words[_ACTION] != number:
            # it was broken meanwhile
            return Status.BROKEN
        if not succeeded:
            self._break()
            return Status.BROKEN
        self._open()
        return Status.OK

    # -- the ends of this process, and of its connection to the owner

    def on_exit(self) -> None:
        """This process exits normally: its parties wait no more, and an action of it has failed."""
        for arrival in list(self._arrivals):
            self.give_up(arrival)

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: all uses raise an error from now on."""
        self._refuse(error)
        self._round.wake()
