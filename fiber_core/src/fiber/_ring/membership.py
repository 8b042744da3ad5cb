"""Membership table of a ring: workers by number, seats by position, and the ranks of both.

A *seat* is a position among the ring's workers, from 0; a replaced worker's successor takes its
seat. Ranks are contiguous on each host, in the order of seats. Apart from ``machine``, which decides:
here is which jobs there are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence

from fiber._base import values
from fiber._ring.events import Command, EndWorker, StartWorker
from fiber._ring.model import Failure, Group, Host, Placement, Policy


class Step:
    """What one event of the machine has: its time, and the commands that come out of it.

    Args:
        epoch: offset in seconds from the machine's clock to the Unix epoch.
    """

    def __init__(self, epoch: float = 0.0) -> None:
        self._epoch = epoch
        #: in seconds, by the machine's clock
        self.now = 0.0
        self.commands: list[Command] = []

    @property
    def unix_time(self) -> float:
        """The time in seconds since the epoch."""
        return self._epoch + self.now

    def is_past(self, deadline: float | None) -> bool:
        """True once a time has come; None never does."""
        return deadline is not None and self.now >= deadline


@values.frozen
class Seated:
    """A worker that is up, as ranks are assigned to it."""

    worker: int
    seat: int
    host: Host
    slots: int


def assign(workers: Iterable[Seated]) -> tuple[Placement, ...]:
    """Assign ranks to workers; returns placements in the order of ranks.

    Hosts come in the order of the lowest seat on them, so that seat 0 has rank 0.
    """
    return assign_in_order(sorted(workers, key=lambda one: one.seat))


def assign_in_order(workers: Iterable[Seated]) -> tuple[Placement, ...]:
    """Assign ranks with hosts in the order of the first of these workers on them."""
    by_host: dict[str, list[Seated]] = {}
    for worker in workers:
        by_host.setdefault(worker.host.key, []).append(worker)
    found = []
    rank = 0
    for node, local_workers in enumerate(by_host.values()):
        local_size = sum(one.slots for one in local_workers)
        local = 0
        for one in local_workers:
            found.append(
                Placement(
                    worker=one.worker,
                    seat=one.seat,
                    host=one.host,
                    first_rank=rank,
                    slots=one.slots,
                    local_rank=local,
                    local_size=local_size,
                    node=node,
                    nodes=len(by_host),
                )
            )
            rank += one.slots
            local += one.slots
    return tuple(found)


class WorkerState(enum.Enum):
    """State of a worker."""

    STARTING = "starting"
    UP = "up"
    DONE = "done"
    FAILED = "failed"


class WorkerRecord:
    """A job of the ring that has not ended."""

    def __init__(self, number: int, seat: int, group: Group, now: float) -> None:
        self.number = number
        self.seat = seat
        self.group = group
        self.state = WorkerState.STARTING
        self.host = Host("", "")
        #: the platform's message while the job is pending
        self.pending_reason = ""
        #: time of its last message
        self.last_seen = now
        #: time at which its termination was requested, and of the next kill
        self.ending_since: float | None = None
        self.kill_at = 0.0


class _Seat:
    def __init__(self) -> None:
        self.failures = 0
        self.not_before = 0.0


class Membership:
    """Workers by number, and the back-off of each seat.

    Args:
        groups: the workers of the ring.
        policy: back-off and grace periods.
        step: has the time, and gets the commands.
    """

    def __init__(self, groups: Sequence[Group], policy: Policy, step: Step) -> None:
        self._step = step
        self._groups = [group for group in groups for _ in range(group.workers)]
        self._policy = policy
        self._seats: dict[int, _Seat] = {}
        self._workers: dict[int, WorkerRecord] = {}
        self._last = 0
        #: last failure to start a worker in this attempt
        self.failure: Failure | None = None

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(list(self._workers.values()))

    def get(self, number: int) -> WorkerRecord | None:
        """Return a worker by number; None once it has ended."""
        return self._workers.get(number)

    @property
    def size(self) -> int:
        """Number of workers in all groups."""
        return len(self._groups)

    @property
    def slots(self) -> tuple[int, int]:
        """Fewest and most ranks of a worker."""
        found = [group.slots for group in self._groups]
        return min(found), max(found)

    def group(self, seat: int) -> Group:
        """Return the group of a seat; seats beyond all groups belong to the last one."""
        return self._groups[min(seat, len(self._groups) - 1)]

    def count(self, state: WorkerState) -> int:
        """Count workers in a state that are not being ended."""
        return sum(w.state is state and w.ending_since is None for w in self._workers.values())

    def up(self) -> list[WorkerRecord]:
        """Return workers that are up and not being ended, by seat."""
        found = [
            w
            for w in self._workers.values()
            if w.state is WorkerState.UP and w.ending_since is None
        ]
        return sorted(found, key=lambda one: one.seat)

    def starting(self) -> list[WorkerRecord]:
        """Return workers that have not connected yet."""
        return [w for w in self._workers.values() if w.state is WorkerState.STARTING]

    def seated(self) -> list[Seated]:
        """Return workers that are up, as :func:`assign` takes them."""
        return [Seated(one.number, one.seat, one.host, one.group.slots) for one in self.up()]

    def missing(self, wanted: int) -> list[int]:
        """Return seats without a worker."""
        taken = {one.seat for one in self._workers.values() if one.ending_since is None}
        return [seat for seat in range(wanted) if seat not in taken]

    # -- starting

    def fill(self, wanted: int) -> None:
        """Start a worker on each free seat whose back-off has passed."""
        for number in self.missing(wanted):
            seat = self._seats.setdefault(number, _Seat())
            if self._step.now < seat.not_before:
                continue
            self._last += 1
            worker = WorkerRecord(self._last, number, self.group(number), self._step.now)
            self._workers[worker.number] = worker
            self._step.commands.append(StartWorker(worker.number, number, worker.group))

    def next_fill(self, wanted: int) -> float | None:
        """Return the time at which the back-off of a free seat ends; None without such a seat."""
        found = [self._seats[n].not_before for n in self.missing(wanted) if n in self._seats]
        return min(found, default=None)

    def record_start_failure(self, seat: int, failure: Failure) -> None:
        """Count a failure of a seat's worker, which delays the next one."""
        found = self._seats.setdefault(seat, _Seat())
        found.failures += 1
        found.not_before = self._step.now + backoff_delay(self._policy, found.failures)
        self.failure = failure

    def begin_attempt(self) -> None:
        """Reset back-offs for a new attempt; workers that returned are up again."""
        self._seats.clear()
        self.failure = None
        for worker in self._workers.values():
            if worker.state is WorkerState.DONE:
                worker.state = WorkerState.UP
            worker.last_seen = self._step.now

    # -- ending

    def end(self, worker: WorkerRecord) -> None:
        """Request the termination of a worker, once."""
        if worker.ending_since is None:
            worker.ending_since = self._step.now
            worker.kill_at = self._step.now + self._policy.timing.grace
            self._step.commands.append(EndWorker(worker.number))

    def end_all(self) -> None:
        """Request the termination of all workers."""
        for worker in self:
            self.end(worker)

    def escalate(self) -> None:
        """Kill workers whose grace period is over; forget those that cannot be killed."""
        for worker in self:
            if worker.ending_since is None:
                continue
            if self._step.now >= worker.ending_since + self._policy.timing.end:
                del self._workers[worker.number]
            elif self._step.now >= worker.kill_at:
                worker.kill_at = self._step.now + self._policy.timing.grace
                self._step.commands.append(EndWorker(worker.number, force=True))

    def next_escalation(self) -> float | None:
        """Return the time at which :meth:`escalate` has something to do."""
        ending = [one for one in self._workers.values() if one.ending_since is not None]
        return min(
            (
                min(one.kill_at, (one.ending_since or 0.0) + self._policy.timing.end)
                for one in ending
            ),
            default=None,
        )

    def remove(self, number: int) -> WorkerRecord | None:
        """Remove and return a worker whose job has ended."""
        return self._workers.pop(number, None)


def backoff_delay(policy: Policy, failures: int) -> float:
    """Return the seconds to wait after a number of failures: exponential, with a cap."""
    timing = policy.timing
    return min(timing.backoff * 2.0 ** min(failures - 1, 30), timing.backoff_cap)
