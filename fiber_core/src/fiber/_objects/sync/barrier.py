"""Those who wait until enough are there: the state of a barrier; pure.

The last one to come may have an action, which it runs while the others go on waiting. Who comes
meanwhile is let in afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable

from fiber._objects.sync.wait_queue import Answer, Answers, Line, Request, Verdict


class Gathering:
    """The state of one barrier. Not thread-safe.

    Args:
        parties: how many are enough.
    """

    def __init__(self, parties: int) -> None:
        #: how many are enough
        self.parties = parties
        #: True until it is reset
        self.is_broken = False
        self._line = Line()
        self._late: list[tuple[Request, bool]] = []
        # number of the action that is being run, and who does it; 0 for none
        self._running = 0
        self._runner: Hashable = None
        self._actions = 0
        # True where the time of one that came late is up
        self._spoilt = False
        # processes that have ended normally
        self._left: set[Hashable] = set()

    @property
    def waiting(self) -> int:
        """How many wait for others to come."""
        return 0 if self._running else len(self._line)

    def arrive(self, request: Request, *, acts: bool) -> Answers:
        """Somebody is there; ``acts`` where it has an action to run if it is the last one."""
        if self._running:
            self._late.append((request, acts))
            return []
        if self.is_broken:
            return [Answer(request, Verdict.BROKEN)]
        if len(self._line) + 1 < self.parties:
            self._line.add(request)
            return []
        if acts:
            self._actions += 1
            self._running, self._runner = self._actions, request.party
            return [Answer(request, Verdict.RUN, self._running)]
        self._line.add(request)
        return self._open()

    def ran(self, party: Hashable, number: int, *, well: bool) -> tuple[Verdict, Answers]:
        """The action was run; how the barrier ended for its runner, and whom to tell what."""
        if not number or (party, number) != (self._runner, self._running):
            # it was broken meanwhile
            return Verdict.BROKEN, []
        if not well:
            return Verdict.BROKEN, self.abort()
        return Verdict.YES, self._open()

    def reset(self) -> Answers:
        """Begin anew; those who wait are told that it broke."""
        out = self._break()
        self.is_broken = False
        return out + self._let_in()

    def abort(self) -> Answers:
        """Break it."""
        out = self._break()
        return out + self._let_in()

    def cancel(self, party: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Somebody waits no more: it leaves, or, where its time is up, the barrier breaks."""
        for late in self._late:
            if (late[0].party, late[0].number) == (party, number):
                self._late.remove(late)
                self._spoilt = self._spoilt or expired
                return [Answer(late[0], Verdict.BROKEN)]
        if self._running and expired:
            # enough were there in time; it is answered when the action was run
            return []
        request = self._line.remove(party, number)
        if request is None:
            return []
        out = [Answer(request, Verdict.BROKEN)]
        return out + self.abort() if expired else out

    def leave(self, party: Hashable, held: int) -> Answers:
        """A process ends normally."""
        self._left.add(party)
        self._line.remove_all(party)
        self._late = [late for late in self._late if late[0].party != party]
        if self._running and party == self._runner:
            return self.abort()
        return []

    def lose(self, party: Hashable, who: str) -> Answers:
        """A process died, which others may count on."""
        if party in self._left:
            self._left.discard(party)
            return []
        self._line.remove_all(party)
        self._late = [late for late in self._late if late[0].party != party]
        return self.abort()

    # -- inside

    def _open(self) -> Answers:
        """All may go."""
        self._running = 0
        out = [
            Answer(request, Verdict.YES, place) for place, request in enumerate(self._line.clear())
        ]
        self.is_broken, self._spoilt = self._spoilt, False
        return out + self._let_in()

    def _break(self) -> Answers:
        self._running = 0
        self._spoilt = False
        self.is_broken = True
        return [Answer(request, Verdict.BROKEN) for request in self._line.clear()]

    def _let_in(self) -> Answers:
        """Those who came while the action was run."""
        late, self._late = self._late, []
        out: Answers = []
        for request, acts in late:
            out += self.arrive(request, acts=acts)
        return out
