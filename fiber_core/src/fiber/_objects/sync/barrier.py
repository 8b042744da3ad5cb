"""Barriers: the state, the owner's side, the side of all other processes, and shared memory.

``BarrierState`` is pure. The last party to arrive may have an action, which it runs while the
others go on waiting. Parties that arrive during the action belong to the next round and join it
afterwards.

A ``SharedBarrier`` is in memory that the processes of one host share. A *round* ends when it is opened or broken;
its number is the word that parties wait for. How the last 60 rounds ended is kept, for parties that run late. The
owner takes part on behalf of processes that do not map the memory, and breaks the barrier when a process dies that
has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._base.threads import Deadline, turn
from fiber._objects.address import Kind
from fiber._objects.sync.monitor import MOST_LOOKS, Monitored, Word
from fiber._objects.sync.monitor import SIZE as MONITOR_SIZE
from fiber._objects.sync.protocol import Answer, Answers, Op, Request, Status, Wait, WaitQueue
from fiber._objects.sync.waitable import OwnedWaitable, RemoteWaitable, Reply, Waitable

if TYPE_CHECKING:
    import mmap

    from fiber._objects.store import Store


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
        for _ in range(2 * MOST_LOOKS):
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
        words = self._words
        # none where it is one of a single party
        others = words[_ARRIVED] or words[_ACTION]
        self._end_round(is_broken_now=False, is_broken=bool(words[_IS_LATE]))
        if others:
            self._round.wake()

    def _break(self, *, is_broken: bool = True) -> None:
        """Report to all waiting parties that the barrier is broken, for good or not."""
        self._end_round(is_broken_now=True, is_broken=is_broken)
        self._round.wake()

    # the parties of a round in which a process died, or was interrupted, can only be told that it is broken
    _repair = _break

    def _end_round(self, *, is_broken_now: bool, is_broken: bool) -> None:
        words = self._words
        words[_ACTION] = words[_ARRIVED] = words[_IS_LATE] = 0
        words[_ENDS] = (words[_ENDS] << 1 | is_broken_now) & _ENDS_MASK
        words[_IS_BROKEN] = is_broken
        words[_ROUND] += 1

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


class BarrierState:
    """The state of one barrier. Not thread-safe.

    Args:
        parties: number of parties that open it.
    """

    def __init__(self, parties: int) -> None:
        #: number of parties that open it
        self.parties = parties
        #: True until it is reset
        self.is_broken = False
        self._queue = WaitQueue()
        # requests that came during the action, and whether they have one
        self._next_round: list[tuple[Request, bool]] = []
        # number of the action that is running, 0 for none; and the process that runs it
        self._action = 0
        self._action_runner: Hashable = None
        self._actions = 0
        # True where a request of the next round timed out
        self._next_round_timed_out = False
        # processes that have exited normally
        self._exited: set[Hashable] = set()

    @property
    def waiting(self) -> int:
        """Number of parties that wait for others to arrive."""
        return 0 if self._action else len(self._queue)

    def state(self) -> tuple[bool, int]:
        """Return whether the barrier is broken, and the number of waiting parties."""
        return self.is_broken, self.waiting

    def arrive(self, request: Request, *, has_action: bool) -> Answers:
        """A party arrives; ``has_action`` where it could run one as the last party."""
        if self._action:
            self._next_round.append((request, has_action))
            return []
        if self.is_broken:
            return [Answer(request, Status.BROKEN)]
        if len(self._queue) + 1 < self.parties:
            self._queue.add(request)
            return []
        if has_action:
            self._actions += 1
            self._action, self._action_runner = self._actions, request.process
            return [Answer(request, Status.RUN_ACTION, self._action)]
        self._queue.add(request)
        return self._open()

    def action_ended(
        self, process: Hashable, number: int, *, succeeded: bool
    ) -> tuple[Status, Answers]:
        """The action has ended; status for the process that ran it, and the answers."""
        if not number or (process, number) != (self._action_runner, self._action):
            # the barrier was broken meanwhile
            return Status.BROKEN, []
        if not succeeded:
            return Status.BROKEN, self.abort()
        return Status.OK, self._open()

    def reset(self) -> Answers:
        """Break it for the waiting parties and make it usable again."""
        out = self._break()
        self.is_broken = False
        return out + self._admit_next_round()

    def abort(self) -> Answers:
        """Break it."""
        out = self._break()
        return out + self._admit_next_round()

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Take a waiting party back; where its timeout has passed, break the barrier."""
        for early in self._next_round:
            if (early[0].process, early[0].number) == (process, number):
                self._next_round.remove(early)
                self._next_round_timed_out = self._next_round_timed_out or expired
                return [Answer(early[0], Status.BROKEN)]
        if self._action and expired:
            # all parties arrived in time; it is answered when the action has ended
            return []
        request = self._queue.remove(process, number)
        if request is None:
            return []
        out = [Answer(request, Status.BROKEN)]
        return out + self.abort() if expired else out

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally; its requests are forgotten."""
        self._exited.add(process)
        self._queue.remove_all(process)
        self._next_round = [early for early in self._next_round if early[0].process != process]
        if self._action and process == self._action_runner:
            return self.abort()
        return []

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died: break the barrier, which may wait for it."""
        if process in self._exited:
            self._exited.discard(process)
            return []
        self._queue.remove_all(process)
        self._next_round = [early for early in self._next_round if early[0].process != process]
        return self.abort()

    # -- inside

    def _open(self) -> Answers:
        """Release all waiting parties."""
        self._action = 0
        out = [
            Answer(request, Status.OK, place) for place, request in enumerate(self._queue.clear())
        ]
        self.is_broken, self._next_round_timed_out = self._next_round_timed_out, False
        return out + self._admit_next_round()

    def _break(self) -> Answers:
        self._action = 0
        self._next_round_timed_out = False
        self.is_broken = True
        return [Answer(request, Status.BROKEN) for request in self._queue.clear()]

    def _admit_next_round(self) -> Answers:
        """Admit the requests that came during the action."""
        early, self._next_round = self._next_round, []
        out: Answers = []
        for request, has_action in early:
            out += self.arrive(request, has_action=has_action)
        return out


class PeersBarrierState:
    """Owner side of a barrier in shared memory, for processes that do not map it.

    Args:
        shared: the barrier.
        start: has a thread call a function that waits; called when a request has to.
    """

    def __init__(
        self,
        shared: SharedBarrier,
        start: Callable[[Wait], object],
    ) -> None:
        self._shared = shared
        self._start = start
        self._arrivals: dict[tuple[Hashable, int], tuple[Request, Arrival]] = {}
        # those that run an action, and processes that have exited normally
        self._runs: dict[int, tuple[Hashable, Arrival]] = {}
        self._exited: set[Hashable] = set()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._arrivals)

    def state(self) -> tuple[bool, int]:
        """Return whether the barrier is broken, and the number of waiting parties of all processes."""
        return self._shared.state()

    def arrive(self, request: Request, *, has_action: bool) -> Answers:
        """A party arrives; ``has_action`` where it could run one as the last party."""
        arrival = Arrival(has_action)
        self._shared.begin(arrival)
        self._arrivals[request.process, request.number] = request, arrival
        answers = self._answers()
        if arrival.status is None:
            self._start(self._wait)
        return answers

    def action_ended(
        self, process: Hashable, number: int, *, succeeded: bool
    ) -> tuple[Status, Answers]:
        """The action has ended; status for the process that ran it, and the answers."""
        runner, _ = self._runs.pop(number, (None, None))
        status = Status.BROKEN
        if runner == process and succeeded:
            status = self._shared.action_succeeded(number)
        elif runner == process:
            self._shared.action_failed(number)
        return status, self._answers()

    def reset(self) -> Answers:
        """Break it for the waiting parties and make it usable again."""
        self._shared.reset()
        return self._answers()

    def abort(self) -> Answers:
        """Break it."""
        self._shared.abort()
        return self._answers()

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Take a waiting party back; where its timeout has passed, break the barrier."""
        _, arrival = self._arrivals.get((process, number), (None, None))
        if arrival is not None and expired:
            self._shared.expire(arrival)
        elif arrival is not None:
            self._shared.give_up(arrival)
            arrival.status = Status.BROKEN
        return self._answers()

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally; its requests are forgotten."""
        self._exited.add(process)
        for key in [key for key in self._arrivals if key[0] == process]:
            self._shared.give_up(self._arrivals.pop(key)[1])
        for number in [n for n, (runner, _) in self._runs.items() if runner == process]:
            self._shared.give_up(self._runs.pop(number)[1])
        return self._answers()

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died: break the barrier, which may wait for it."""
        if process in self._exited:
            self._exited.discard(process)
            return []
        for key in [key for key in self._arrivals if key[0] == process]:
            del self._arrivals[key]
        return self.abort()

    def _wait(self, seconds: float) -> Callable[[], Answers]:
        rounds = [arrival.round for _, arrival in list(self._arrivals.values())]
        if rounds:
            self._shared.wait(min(rounds), Deadline(seconds))
        return self._answers

    def _answers(self) -> Answers:
        """Answer those whose round has ended."""
        out: Answers = []
        for key, (request, arrival) in list(self._arrivals.items()):
            self._shared.go_on(arrival)
            if arrival.status is not None:
                del self._arrivals[key]
                if arrival.status is Status.RUN_ACTION:
                    self._runs[arrival.number] = request.process, arrival
                out.append(Answer(request, arrival.status, arrival.number))
        return out


class BarrierCalls(Waitable):
    """What users call of a barrier, at its owner and in another process."""

    def arrive(self, timeout: float | None, *, has_action: bool) -> tuple[Status, int]:
        """Arrive and wait; status, and the party's index or the number of the action to run."""
        answer = self.request(Op.ARRIVE, has_action, timeout, rollback=self._rollback)
        return answer.status, answer.value

    def action_succeeded(self, number: int) -> Status:
        """Open the barrier after its action; BROKEN if it was broken meanwhile."""
        return self.request(Op.ACTION_ENDED, 2 * number + 1).status

    def action_failed(self, number: int) -> None:
        """Break the barrier after its action."""
        self.send(Op.ACTION_ENDED, 2 * number)

    def reset(self) -> None:
        """Break it for the waiting parties and make it usable again."""
        self.request(Op.RESET)

    def abort(self) -> None:
        """Break it."""
        self.request(Op.ABORT)

    def state(self) -> tuple[bool, int]:
        """Return whether the barrier is broken, and the number of waiting parties."""
        answer = self.request(Op.VALUE)
        return answer.status is Status.BROKEN, answer.value

    def _rollback(self, answer: Answer | Reply) -> None:
        if answer.status is Status.RUN_ACTION:
            self.action_failed(answer.value)


class OwnedBarrier(OwnedWaitable, BarrierCalls):
    """A barrier at its owner.

    Args:
        store: of this process.
        parties: number of parties that open it.
        is_shared: True to have the state in memory that the processes of this host share.

    Raises:
        OSError: there is no room for that.
    """

    def __init__(self, store: Store, parties: int, *, is_shared: bool = False) -> None:
        self._barrier: BarrierState | PeersBarrierState = BarrierState(parties)
        super().__init__(store, Kind.BARRIER, self._barrier)
        if is_shared:
            self.shared = SharedBarrier(*self._allocate(SIZE), parties)
            self._state = self._barrier = PeersBarrierState(self.shared, self._wait_for_others)

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        barrier = self._barrier
        if op == Op.ARRIVE:
            return barrier.arrive(request, has_action=bool(argument))
        if op == Op.ACTION_ENDED:
            number, succeeded = divmod(argument, 2)
            status, answers = barrier.action_ended(
                request.process, number, succeeded=bool(succeeded)
            )
            return [*answers, Answer(request, status)]
        if op == Op.RESET:
            return [*barrier.reset(), Answer(request, Status.OK)]
        if op == Op.ABORT:
            return [*barrier.abort(), Answer(request, Status.OK)]
        if op == Op.VALUE:
            is_broken, waiting = barrier.state()
            return [Answer(request, Status.BROKEN if is_broken else Status.OK, waiting)]
        return None


class RemoteBarrier(RemoteWaitable, BarrierCalls):
    """A barrier of another process."""

    def _share(self, memory: mmap.mmap, begin: int) -> SharedBarrier:
        return SharedBarrier(memory, begin)

    def on_exit(self, code: int) -> None:
        """Report a normal exit of this process; any other exit breaks the barrier."""
        if code == 0 and self._error is None:
            if self._shared is not None:
                self._shared.on_exit()
            self.submit(functools.partial(self.send, Op.ENDING))
