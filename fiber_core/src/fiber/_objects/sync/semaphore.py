"""Permits that are taken and given back: the state of a lock or a semaphore; pure.

Every method is an event and returns whom to tell what, in order. Permits go to those who wait in
the order in which they asked, so nobody starves. While anybody waits, there is none to spare.

It is noted which process took how many, for the case that it dies with them. A permit that another
process gives back is taken off the one that has had one for longest.

What the threads of one process have of a lock or semaphore.

A lock or semaphore at its owner.

A lock or semaphore in another process than its owner's.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Hashable
from types import FrameType
from typing import TYPE_CHECKING

from fiber._objects.address import Address, Kind
from fiber._objects.owner import Owner
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.protocol import Op, Word
from fiber._objects.sync.remote import RemoteWaited, Told
from fiber._objects.sync.wait_queue import TAKEN, Answer, Answers, Line, Request, Verdict
from fiber.exceptions import HolderDiedError, HolderDiedWarning, LeaseLostError, PeerLostError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fiber._objects.store import Store

# held by no process: it was there from the beginning, or its taker is gone
NOBODY = object()


class Permits:
    """The state of one lock or semaphore. Not thread-safe.

    Args:
        value: permits to begin with.
        maximum: most permits there may ever be.
        recover: what a process had taken comes back when it dies.
        trace: a permit that another gives back is taken off a process that had taken one.
        tell: whoever takes such a permit next is told of the death.
        refuse: whoever asks next is told of the death and gets nothing.
    """

    def __init__(
        self,
        value: int,
        maximum: int,
        *,
        recover: bool = True,
        trace: bool = True,
        tell: bool = True,
        refuse: bool = False,
    ) -> None:
        #: permits that can be taken
        self.value = value
        #: most there may be
        self.maximum = maximum
        #: permits by process; those that took them last are at the end
        self.holds: dict[Hashable, int] = {}
        self._recover = recover
        self._trace = trace
        self._tell = tell
        self._refuse = refuse
        self._line = Line()
        # those who died and of whom nobody has been told
        self._deaths: list[str] = []
        # of whom somebody was told last
        self._told = ""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    @property
    def is_used_elsewhere(self) -> bool:
        """True while another process than the owner's holds permits or waits for some."""
        return self._line.has_others(None) or any(party is not None for party in self.holds)

    def held_by(self, party: Hashable) -> int:
        """Permits that a process has."""
        return self.holds.get(party, 0)

    # -- taking

    def take_now(self, party: Hashable) -> bool:
        """Take a permit where there is one and nothing to tell; False otherwise."""
        if not self.value or self._deaths:
            return False
        self._take(party)
        return True

    def ask(self, request: Request, *, wait: bool) -> Answers:
        """Somebody wants a permit.

        Raises:
            WireError: a number is used twice.
        """
        if self.value or not wait:
            return [self._hand_out(request) if self.value else Answer(request, Verdict.NO)]
        self._line.add(request)
        return []

    def cancel(self, party: Hashable, number: int, *, expired: bool = False) -> Answers:
        """A request is to be answered now; nothing where it was."""
        request = self._line.remove(party, number)
        return [] if request is None else [Answer(request, Verdict.NO)]

    # -- giving back

    def release(self, party: Hashable) -> Answers:
        """A process gives back what it has; nothing where another one has done so for it."""
        if not self._drop(party):
            return []
        return self._return()

    def untake(self, party: Hashable, *, inherited: bool) -> Answers:
        """A permit was handed out to somebody who no longer wants it."""
        if inherited and self._told and party in self.holds:
            self._deaths.insert(0, self._told)
        return self.release(party)

    def give(self, request: Request) -> tuple[list[Hashable], Answers]:
        """Somebody gives a permit back, whoever has taken it.

        Returns:
            The other process that no longer has it, if there is one; whom to tell what.
        """
        if self.value >= self.maximum:
            return [], [Answer(request, Verdict.TOO_MANY)]
        taker: Hashable = NOBODY
        if request.party in self.holds:
            taker = request.party
        elif self._trace:
            taker = next(iter(self.holds), NOBODY)
        self._drop(taker)
        losers = [taker] if taker not in (NOBODY, request.party) else []
        return losers, [Answer(request, Verdict.YES), *self._return()]

    # -- processes that end

    def leave(self, party: Hashable, held: int) -> Answers:
        """A process ends normally with so many permits, which stay taken."""
        self._line.remove_all(party)
        out: Answers = []
        # what reached it too late was never its own
        while self.held_by(party) > held:
            out += self.release(party)
        self.holds.pop(party, None)
        return out

    def lose(self, party: Hashable, who: str) -> Answers:
        """A process died."""
        self._line.remove_all(party)
        lost = self.holds.pop(party, 0)
        if not lost or not self._recover:
            return []
        if self._tell:
            self._deaths.append(who)
        out: Answers = []
        for _ in range(lost):
            out += self._return()
        return out

    # -- inside

    def _take(self, party: Hashable) -> None:
        self.value -= 1
        # at the end
        self.holds[party] = self.holds.pop(party, 0) + 1

    def _drop(self, party: Hashable) -> bool:
        held = self.holds.get(party, 0)
        if held > 1:
            self.holds[party] = held - 1
        elif held:
            del self.holds[party]
        return bool(held)

    def _return(self) -> Answers:
        self.value += 1
        out: Answers = []
        while self.value and len(self._line):
            out.append(self._hand_out(self._line.first()))
        return out

    def _hand_out(self, request: Request) -> Answer:
        if not self._deaths:
            self._take(request.party)
            return Answer(request, Verdict.YES)
        who = self._told = ", ".join(self._deaths)
        self._deaths.clear()
        if self._refuse:
            return Answer(request, Verdict.DIED, text=who)
        self._take(request.party)
        return Answer(request, Verdict.INHERITED, text=who)


class Holding:
    """Not thread-safe, except for what a thread asks about itself.

    Args:
        what: word for it in messages to people.
        recursive: the thread that has it may take it again.
    """

    def __init__(self, what: str, *, recursive: bool) -> None:
        self._what = what
        self._recursive = recursive
        #: permits that this process has
        self.held = 0
        #: the thread that took one last
        self.thread = 0
        # how often it did, where it may do so again
        self._depth = 0

    @property
    def is_mine(self) -> bool:
        """True where this thread took it last, and it was not given back."""
        return self.held > 0 and self.thread == threading.get_ident()

    @property
    def count(self) -> int:
        """How often it must be released."""
        return self._depth if self._recursive else self.held

    def enter_again(self) -> bool:
        """True where this thread has it and may take it again, which it does."""
        if self._recursive and self.is_mine:
            self._depth += 1
            return True
        return False

    def mark(self) -> None:
        """This thread took it, which is counted already."""
        self.thread = threading.get_ident()
        self._depth = 1

    def leave_once(self) -> bool:
        """This thread releases it; False where it keeps it, having taken it more often.

        Raises:
            AssertionError: it may be released by the thread that took it alone.
        """
        if self._recursive:
            if not self.is_mine:
                msg = "attempt to release recursive lock not owned by thread"
                raise AssertionError(msg)
            self._depth -= 1
            if self._depth:
                return False
        if self.held <= 1 and self.thread == threading.get_ident():
            # another thread may be given it before that says so itself
            self.thread = 0
        return True

    def leave_fully(self) -> int:
        """This thread is about to release it altogether; what :meth:`entered_fully` gets."""
        depth, self._depth = self._depth, 1
        return depth

    def entered_fully(self, depth: int) -> None:
        """This thread took it again, as often as before."""
        self._depth = depth

    def warn(self, verdict: Verdict, who: str) -> None:
        """Tell the user of a death.

        Raises:
            HolderDiedError: nothing was taken.
            HolderDiedWarning: it was, and warnings are errors.
        """
        text = f"{who} died while it held this {self._what}; what that guards may be half changed"
        if verdict is Verdict.DIED:
            raise HolderDiedError(text)
        if verdict is Verdict.INHERITED:
            warnings.warn(text, HolderDiedWarning, stacklevel=_frames_of_ours() + 1)


class Held:
    """What both sides of a lock or semaphore do with what this process has of it."""

    #: what this process has
    mine: Holding

    def release(self) -> None:
        """Give a permit back."""
        raise NotImplementedError

    def release_fully(self) -> int:
        """Give it back, however often this thread has taken it."""
        depth = self.mine.leave_fully()
        self.release()
        return depth

    def warn(self, verdict: Verdict, who: str) -> None:
        """Tell the user of a death; where that is an error, nothing stays taken.

        Raises:
            HolderDiedError: nothing was taken.
            HolderDiedWarning: it was and is given back, and warnings are errors.
        """
        try:
            self.mine.warn(verdict, who)
        except HolderDiedWarning:
            self.release()
            raise


def _frames_of_ours() -> int:
    """How many calls of Fiber's own the user's call has led to."""
    count = 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way to see callers
    while frame is not None and frame.f_globals.get("__name__", "").startswith("fiber."):
        count += 1
        frame = frame.f_back
    return count


class SharedPermits(Held, Waited):
    """Its threads take permits without the wire; see :class:`~fiber.synchronize.Locking`."""

    def __init__(self, store: Store, kind: Kind, permits: Permits) -> None:
        super().__init__(store, kind, permits)
        self._permits = permits
        #: what this process has
        self.mine = Holding(self.shape.name, recursive=kind is Kind.RLOCK)

    # -- for threads here

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Take a permit; False where there is none, or none has come in time."""
        mine = self.mine
        if mine.enter_again():
            return True
        with self.lock:
            if self._permits.take_now(None):
                mine.held += 1
                mine.mark()
                return True
        wait = block and (timeout is None or timeout > 0)
        answer = self.ask(functools.partial(self._permits.ask, wait=wait), timeout, self._undo)
        if answer.verdict in TAKEN:
            mine.mark()
        if answer.text:
            self.warn(answer.verdict, answer.text)
        return answer.verdict is not Verdict.NO

    def release(self) -> None:
        """Give a permit back."""
        mine = self.mine
        if not mine.leave_once():
            return
        with self.lock:
            if mine.held > 0:
                mine.held -= 1
                self.carry(self._permits.release(None))
                return
            outcome, *others = self._give(Request(None))
            self.carry(others)
        if outcome.verdict is Verdict.TOO_MANY:
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def check(self) -> None:
        """Nothing can be lost where the owner is."""

    def value(self) -> int:
        """How many permits can be taken."""
        return self._permits.value

    def carry(self, answers: Answers) -> None:
        """Tell those who wait; what threads here are given is counted at once."""
        self.mine.held += sum(one.request.party is None and one.verdict in TAKEN for one in answers)
        super().carry(answers)

    def _undo(self, answer: Answer) -> Answers:
        if answer.verdict not in TAKEN:
            return []
        self.mine.held -= 1
        return self._permits.untake(None, inherited=answer.verdict is Verdict.INHERITED)

    # -- for threads here and other processes, with the lock held

    def _give(self, request: Request) -> Answers:
        losers, answers = self._permits.give(request)
        for loser in losers:
            self._taken_off(loser)
        return answers

    def _taken_off(self, loser: Hashable) -> None:
        if loser is None:
            self.mine.held -= 1
        else:
            self._tell(loser, Word.TAKEN_OFF)

    def _asked(self, op: int, request: Request, argument: int) -> Answers | None:
        if op == Op.ACQUIRE:
            return self._permits.ask(request, wait=bool(argument))
        if op == Op.RELEASE:
            return self._permits.untake(request.party, inherited=bool(argument))
        if op == Op.GIVE and self.kind is not Kind.RLOCK:
            return self._give(request)
        if op == Op.VALUE:
            return [Answer(request, Verdict.YES, self._permits.value)]
        return None


class RemotePermits(Held, RemoteWaited):
    """One question for each permit, and one word for giving it back.

    See :class:`~fiber.synchronize.Locking`.
    """

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        #: what this process has
        self.mine = Holding(self.shape.name, recursive=address.kind is Kind.RLOCK)
        # True while it is held here although no handle is left
        self._pinned = False

    # -- the user's threads

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Take a permit; False where there is none, or none has come in time."""
        mine = self.mine
        if self._error is None and mine.enter_again():
            return True
        wait = block and (timeout is None or timeout > 0)
        patience = timeout if wait else None
        told = self.ask(Op.ACQUIRE, wait, patience, heard=self._count, undo=self._undo)
        if told.verdict in TAKEN:
            mine.mark()
        if told.text:
            self.warn(told.verdict, told.text)
        return told.verdict is not Verdict.NO

    def release(self) -> None:
        """Give a permit back."""
        mine = self.mine
        self.check()
        if not mine.leave_once():
            return
        with self._guard:
            has_one = mine.held > 0
            if has_one:
                mine.held -= 1
        if has_one:
            self._give_back()
        elif self.ask(Op.GIVE).verdict is Verdict.TOO_MANY:
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def check(self) -> None:
        """Raise what an operation would: the owner is gone, and perhaps what was held."""
        if self._error is not None:
            raise self.lost(self._error) from self._error

    def value(self) -> int:
        """How many permits can be taken."""
        return self.ask(Op.VALUE).value

    def lost(self, error: BaseException | None) -> PeerLostError:
        """What the loss of the owner means for the user."""
        lost = super().lost(error)
        if self.mine.held <= 0:
            return lost
        msg = (
            f"the connection to the owner of this {self.shape.name} was lost while this process "
            f"held it, so others may hold it by now: {lost}"
        )
        return LeaseLostError(msg)

    def _give_back(self) -> None:
        try:
            self.say(Op.RELEASE)
        except PeerLostError as error:
            with self._guard:
                self.mine.held += 1
            raise self.lost(error) from error

    def _count(self, told: Told) -> None:
        if told.verdict in TAKEN:
            self.mine.held += 1

    def _undo(self, told: Told) -> None:
        if told.verdict in TAKEN:
            with self._guard:
                self.mine.held -= 1
            self.say(Op.RELEASE, told.verdict is Verdict.INHERITED)

    # -- what happens elsewhere

    def _heard_word(self, word: int) -> None:
        if word == Word.TAKEN_OFF:
            with self._guard:
                self.mine.held -= 1

    def ending(self, code: int) -> None:
        """This process ends by itself; after a normal end what it holds stays taken."""
        # a permit may also be on its way to a thread that waits
        if code == 0 and self._error is None and (self.mine.held > 0 or self._asked):
            self.soon(functools.partial(self.say, Op.ENDING, max(0, self.mine.held)))

    def _drop(self, end: int) -> None:
        # what is held stays so without a handle, and the owner is to hear how this process ends
        with self._lock:
            held = self.mine.held > 0
            if self._pinned and not held:
                self._pinned = False
                self._holds[end] -= 1
            elif held and not self._pinned and self._holds[end] == 1:
                self._pinned = True
                return
        super()._drop(end)
