"""Barriers: the state, the owner's side, and the side of all other processes.

``BarrierState`` is pure. The last party to arrive may have an action, which it runs while the
others go on waiting. Parties that arrive during the action belong to the next round and join it
afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.owned_waitable import OwnedWaitable
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote_waitable import RemoteWaitable, Reply
from fiber._objects.sync.shared_barrier import SIZE, Arrival, SharedBarrier
from fiber._objects.sync.wait_queue import Answer, Answers, Request, Status, Wait, WaitQueue
from fiber._objects.waiting import Deadline

if TYPE_CHECKING:
    import mmap

    from fiber._objects.store import Store


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


class OwnedBarrier(OwnedWaitable):
    """A barrier at its owner; see :class:`~fiber.synchronize.BarrierObject`.

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

    # -- for threads of this process

    def arrive(self, timeout: float | None, *, has_action: bool) -> tuple[Status, int]:
        """Arrive and wait; status, and the party's index or the number of the action to run."""
        event = functools.partial(self._barrier.arrive, has_action=has_action)
        answer = self.request(event, timeout, self._rollback)
        return answer.status, answer.value

    def action_succeeded(self, number: int) -> Status:
        """Open the barrier after its action; BROKEN if it was broken meanwhile."""
        with self.lock:
            status, answers = self._barrier.action_ended(None, number, succeeded=True)
            self.deliver_answers(answers)
        return status

    def action_failed(self, number: int) -> None:
        """Break the barrier after its action."""
        with self.lock:
            self.deliver_answers(self._barrier.action_ended(None, number, succeeded=False)[1])

    def reset(self) -> None:
        """Break it for the waiting parties and make it usable again."""
        with self.lock:
            self.deliver_answers(self._barrier.reset())

    def abort(self) -> None:
        """Break it."""
        with self.lock:
            self.deliver_answers(self._barrier.abort())

    def state(self) -> tuple[bool, int]:
        """Return whether the barrier is broken, and the number of waiting parties."""
        return self._barrier.state()

    def _rollback(self, answer: Answer) -> Answers:
        if answer.status is not Status.RUN_ACTION:
            return []
        return self._barrier.action_ended(None, answer.value, succeeded=False)[1]

    # -- other processes

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
            is_broken, waiting = self.state()
            return [Answer(request, Status.BROKEN if is_broken else Status.OK, waiting)]
        return None


class RemoteBarrier(RemoteWaitable):
    """A barrier of another process; see :class:`~fiber.synchronize.BarrierObject`."""

    def _share(self, memory: mmap.mmap, begin: int) -> SharedBarrier:
        return SharedBarrier(memory, begin)

    def arrive(self, timeout: float | None, *, has_action: bool) -> tuple[Status, int]:
        """Arrive and wait; status, and the party's index or the number of the action to run."""
        reply = self.request(Op.ARRIVE, has_action, timeout, rollback=self._rollback)
        return reply.status, reply.value

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
        reply = self.request(Op.VALUE)
        return reply.status is Status.BROKEN, reply.value

    def on_exit(self, code: int) -> None:
        """Report a normal exit of this process; any other exit breaks the barrier."""
        if code == 0 and self._error is None:
            if self._shared is not None:
                self._shared.on_exit()
            self.submit(functools.partial(self.send, Op.ENDING))

    def _rollback(self, reply: Reply) -> None:
        if reply.status is Status.RUN_ACTION:
            self.action_failed(reply.value)
