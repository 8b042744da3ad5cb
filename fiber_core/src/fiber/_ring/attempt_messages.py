"""Takes what members say of rounds to the machine, and what the machine decides to the members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fiber._ring import commands as do
from fiber._ring import events
from fiber._ring.attempt import Round
from fiber._ring.join import Admission
from fiber._ring.protocol import Beat, Hello, Kept, Met, Probed, Raised, Returned, Run
from fiber._ring.workers import Worker, raised

__all__ = ["Talk"]


class Talk:
    """The round of a ring, and what it goes on from.

    Args:
        team: all workers, by number.
        bounds: fewest and most ranks, where these may change while ranks run.
        feed: tells the machine.
    """

    def __init__(
        self,
        team: Mapping[int, Worker],
        bounds: tuple[int, int] | None,
        feed: Callable[[events.Event], None],
    ) -> None:
        self._team = team
        self._bounds = bounds
        self._feed = feed
        self._round: Round | None = None
        self._admission: Admission | None = None
        self._state: tuple[int, bytes | None] = (0, None)

    def rank_of(self, worker: Worker, slot: int | None) -> int | None:
        """The rank of a worker's slot; None where it has none."""
        return None if self._round is None else self._round.rank_of(worker.number, slot)

    def results(self) -> list[bytes]:
        """What each rank returned, pickled, by rank."""
        return [] if self._round is None else self._round.results()

    # -- what the machine wants

    def form(self, told: do.Form) -> None:
        """Bring the workers of a new round together."""
        self._admission = None
        self._round = Round(told.round, told.restarts, told.placements, self._team, self._bounds)
        self._round.dial()

    def go(self) -> None:
        """Let all of them begin."""
        current = self._round
        assert current is not None, "the machine forms a round before it runs"
        for place in current.placements:
            self._team[place.worker].send(self._run(current))

    def admit(self, told: do.Admit) -> None:
        """Bring a newcomer together with those that run."""
        assert self._round is not None, "the machine admits to a round"
        self._admission = Admission(self._round, self._team[told.worker], self._team)
        self._admission.ask()
        self.look_again()

    def change(self, told: do.Change) -> None:
        """Tell those that run who they are now; a newcomer is told the same, and begins."""
        current, admission = self._round, self._admission
        assert current is not None, "the machine changes a round"
        joined = any(place.worker not in current.workers for place in told.placements)
        came = admission.hellos if admission is not None and joined else ()
        current.change(told.placements, came)
        self.look_again()

    def collect(self, told: do.Collect) -> None:
        """Ask survivors what they committed last."""
        current = self._round
        assert current is not None, "the machine collects from a round"
        current.ask(told.workers)
        self.look_again()

    # -- what members say

    def heard(self, worker: Worker, slot: int, message: Any) -> None:
        """A member said something, which is a sign of life in any case."""
        number, current = worker.number, self._round
        self._feed(events.WorkerHeard(number))
        if isinstance(message, Hello):
            worker.hellos[slot] = message
            if worker.is_up:
                self._feed(events.WorkerUp(number, message.host))
        elif isinstance(message, Probed) and current is not None:
            self._probed(current, worker, slot, message)
        elif isinstance(message, Met) and current is not None:
            self._met(current, worker, slot, message)
        elif isinstance(message, Returned):
            worker.returned[slot] = message.result
            if len(worker.returned) == worker.group.slots:
                self._feed(events.WorkerDone(number))
        elif isinstance(message, Raised):
            worker.raised.add(slot)
            host = worker.hellos[slot].host.name
            failed = raised(message, self.rank_of(worker, slot), host)
            self._feed(events.WorkerFailed(number, failed))
        elif isinstance(message, Kept):
            worker.kept[slot] = message
            self.look_again()
        else:
            assert isinstance(message, Beat), f"a member said {message!r}"

    def look_again(self) -> None:
        """Somebody answered, or will not any more."""
        current, admission = self._round, self._admission
        if current is not None and current.is_answered():
            self._keep_newest(current)
            self._feed(events.Collected(current.number))
        if admission is not None and admission.is_answered():
            self._decide(admission)

    def _probed(self, current: Round, worker: Worker, slot: int, message: Probed) -> None:
        admission = self._admission
        if admission is not None:
            admission.probed(worker, slot, message)
            self.look_again()
            return
        failure = current.probed(worker.number, slot, message)
        if failure is not None:
            self._feed(events.NotFormed(current.number, failure))

    def _met(self, current: Round, worker: Worker, slot: int, message: Met) -> None:
        if current.is_joining(worker.number):
            worker.send_to(slot, self._run(current))
        elif current.met(worker.number, slot, message):
            self._feed(events.Formed(current.number))

    def _decide(self, admission: Admission) -> None:
        failure, number, current = admission.failure(), admission.worker.number, self._round
        assert current is not None, "somebody is admitted to a round"
        self._keep_newest(current)
        if failure is None:
            self._feed(events.Admitted(current.number, number))
        else:
            self._feed(events.NotAdmitted(current.number, number, failure))
        if self._admission is admission:
            self._admission = None

    def _keep_newest(self, current: Round) -> None:
        """What those that begin go on from: the newest state that anybody told."""
        newest = current.newest()
        if newest is not None and newest[0] >= self._state[0]:
            self._state = newest

    def _run(self, current: Round) -> Run:
        step, state = self._state
        return Run(facts=current.facts, step=step, state=state)
