"""Permits that are taken and given back: the state of a lock or a semaphore; pure.

Every method is an event and returns whom to tell what, in order. Permits go to those who wait in
the order in which they asked, so nobody starves. While anybody waits, there is none to spare.

It is noted which process took how many, for the case that it dies with them. A permit that another
process gives back is taken off the one that has had one for longest.
"""

from __future__ import annotations

from collections.abc import Hashable

from fiber._objects.sync.wait_queue import Answer, Answers, Line, Request, Verdict

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
