"""Those who wait until enough are there: the state of a barrier; pure.

The last one to come may have an action, which it runs while the others go on waiting. Who comes
meanwhile is let in afterwards.

A barrier at its owner.

A barrier in another process than its owner's.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.owned import Waited
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote import RemoteWaited, Told
from fiber._objects.sync.wait_queue import Answer, Answers, Line, Request, Verdict

if TYPE_CHECKING:
    from fiber._objects.store import Store


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


class SharedBarrier(Waited):
    """See :class:`~fiber.synchronize.Gathering`."""

    def __init__(self, store: Store, parties: int) -> None:
        self._gathering = Gathering(parties)
        super().__init__(store, Kind.BARRIER, self._gathering)

    # -- for threads here

    def arrive(self, timeout: float | None, *, acts: bool) -> tuple[Verdict, int]:
        """One more is there; how it ended, and its place or the number of the action to run."""
        event = functools.partial(self._gathering.arrive, acts=acts)
        answer = self.ask(event, timeout, self._undo)
        return answer.verdict, answer.value

    def ran(self, number: int) -> Verdict:
        """The action went well; how the barrier ended."""
        with self.lock:
            verdict, answers = self._gathering.ran(None, number, well=True)
            self.carry(answers)
        return verdict

    def failed(self, number: int) -> None:
        """The action did not go well."""
        with self.lock:
            self.carry(self._gathering.ran(None, number, well=False)[1])

    def reset(self) -> None:
        """Begin anew; those who wait are told that it broke."""
        with self.lock:
            self.carry(self._gathering.reset())

    def abort(self) -> None:
        """Break it."""
        with self.lock:
            self.carry(self._gathering.abort())

    def state(self) -> tuple[bool, int]:
        """True where it is broken; how many wait."""
        return self._gathering.is_broken, self._gathering.waiting

    def _undo(self, answer: Answer) -> Answers:
        if answer.verdict is not Verdict.RUN:
            return []
        return self._gathering.ran(None, answer.value, well=False)[1]

    # -- other processes

    def _asked(self, op: int, request: Request, argument: int) -> Answers | None:
        gathering = self._gathering
        if op == Op.ARRIVE:
            return gathering.arrive(request, acts=bool(argument))
        if op == Op.RAN:
            number, well = divmod(argument, 2)
            verdict, answers = gathering.ran(request.party, number, well=bool(well))
            return [*answers, Answer(request, verdict)]
        if op == Op.RESET:
            return [*gathering.reset(), Answer(request, Verdict.YES)]
        if op == Op.ABORT:
            return [*gathering.abort(), Answer(request, Verdict.YES)]
        if op == Op.VALUE:
            verdict = Verdict.BROKEN if gathering.is_broken else Verdict.YES
            return [Answer(request, verdict, gathering.waiting)]
        return None


class RemoteBarrier(RemoteWaited):
    """See :class:`~fiber.synchronize.Gathering`."""

    def arrive(self, timeout: float | None, *, acts: bool) -> tuple[Verdict, int]:
        """One more is there; how it ended, and its place or the number of the action to run."""
        told = self.ask(Op.ARRIVE, acts, timeout, undo=self._undo)
        return told.verdict, told.value

    def ran(self, number: int) -> Verdict:
        """The action went well; how the barrier ended."""
        return self.ask(Op.RAN, 2 * number + 1).verdict

    def failed(self, number: int) -> None:
        """The action did not go well."""
        self.say(Op.RAN, 2 * number)

    def reset(self) -> None:
        """Begin anew; those who wait are told that it broke."""
        self.ask(Op.RESET)

    def abort(self) -> None:
        """Break it."""
        self.ask(Op.ABORT)

    def state(self) -> tuple[bool, int]:
        """True where it is broken; how many wait."""
        told = self.ask(Op.VALUE)
        return told.verdict is Verdict.BROKEN, told.value

    def ending(self, code: int) -> None:
        """This process ends by itself; unless that is normal, it breaks the barrier."""
        if code == 0 and self._error is None:
            self.soon(functools.partial(self.say, Op.ENDING))

    def _undo(self, told: Told) -> None:
        if told.verdict is Verdict.RUN:
            self.failed(told.value)
