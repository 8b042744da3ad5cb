"""The workers of a ring as its machine knows them: who is there, who is up, who is being ended.

Assigns ranks: contiguous on each host, in the order of seats.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence

from fiber._base import values
from fiber._ring.events import EndWorker, Instruction, StartWorker
from fiber._ring.model import Failure, Group, Host, Placement
from fiber._ring.policy import Policy


@values.frozen
class Seated:
    """A worker that is up, before it has ranks."""

    worker: int
    seat: int
    host: Host
    slots: int


def assign(workers: Iterable[Seated]) -> tuple[Placement, ...]:
    """The ranks of some workers, in the order of their ranks.

    Hosts come in the order of the lowest seat on them, so that seat 0 has rank 0.
    """
    return in_order(sorted(workers, key=lambda one: one.seat))


def in_order(workers: Iterable[Seated]) -> tuple[Placement, ...]:
    """The same, where hosts come in the order of the first worker on them."""
    by_host: dict[str, list[Seated]] = {}
    for worker in workers:
        by_host.setdefault(worker.host.key, []).append(worker)
    found = []
    rank = 0
    for node, here in enumerate(by_host.values()):
        local_size = sum(one.slots for one in here)
        local = 0
        for one in here:
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


class State(enum.Enum):
    """What a worker is doing."""

    STARTING = "starting"
    UP = "up"
    DONE = "done"
    FAILED = "failed"


class Worker:
    """One job of the ring that has not ended."""

    def __init__(self, number: int, seat: int, group: Group, now: float) -> None:
        self.number = number
        self.seat = seat
        self.group = group
        self.state = State.STARTING
        self.host = Host("", "")
        #: what its job waits for, in the platform's words
        self.waits_for = ""
        #: when it was last heard of
        self.heard = now
        #: since when it is being ended, and when it is to be told again
        self.ending: float | None = None
        self.end_again = 0.0


class _Seat:
    def __init__(self) -> None:
        self.failures = 0
        self.not_before = 0.0


class Roll:
    """Workers by number; seats by position."""

    def __init__(self, groups: Sequence[Group], policy: Policy) -> None:
        self._groups = [group for group in groups for _ in range(group.workers)]
        self._policy = policy
        self._seats: dict[int, _Seat] = {}
        self._workers: dict[int, Worker] = {}
        self._last = 0
        #: why a worker of this attempt failed last
        self.failure: Failure | None = None

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def get(self, number: int) -> Worker | None:
        """A worker that has not ended."""
        return self._workers.get(number)

    @property
    def size(self) -> int:
        """Workers that the groups have in all."""
        return len(self._groups)

    @property
    def slots(self) -> tuple[int, int]:
        """Fewest and most ranks that a worker has."""
        found = [group.slots for group in self._groups]
        return min(found), max(found)

    def group(self, seat: int) -> Group:
        """What the worker of a seat needs; seats beyond the groups are as the last one."""
        return self._groups[min(seat, len(self._groups) - 1)]

    def count(self, state: State) -> int:
        """How many are in a state and not being ended."""
        return sum(w.state is state and w.ending is None for w in self._workers.values())

    def up(self) -> list[Worker]:
        """Those that are up and not being ended, by seat."""
        found = [w for w in self._workers.values() if w.state is State.UP and w.ending is None]
        return sorted(found, key=lambda one: one.seat)

    def starting(self) -> list[Worker]:
        """Those that have not said hello."""
        return [w for w in self._workers.values() if w.state is State.STARTING]

    def seated(self) -> list[Seated]:
        """The same, as ranks are assigned to them."""
        return [Seated(one.number, one.seat, one.host, one.group.slots) for one in self.up()]

    def missing(self, wanted: int) -> list[int]:
        """Seats without a worker."""
        taken = {one.seat for one in self._workers.values() if one.ending is None}
        return [seat for seat in range(wanted) if seat not in taken]

    # -- starting

    def fill(self, wanted: int, now: float, out: list[Instruction]) -> None:
        """Start a worker on each free seat whose time has come."""
        for number in self.missing(wanted):
            seat = self._seats.setdefault(number, _Seat())
            if now < seat.not_before:
                continue
            self._last += 1
            worker = Worker(self._last, number, self.group(number), now)
            self._workers[worker.number] = worker
            out.append(StartWorker(worker.number, number, worker.group))

    def next_fill(self, wanted: int) -> float | None:
        """When the next free seat may be filled."""
        found = [self._seats[n].not_before for n in self.missing(wanted) if n in self._seats]
        return min(found, default=None)

    def failed_to_start(self, seat: int, failure: Failure, now: float) -> None:
        """The next worker of that seat is started later, and later each time."""
        found = self._seats.setdefault(seat, _Seat())
        found.failures += 1
        found.not_before = now + delay(self._policy, found.failures)
        self.failure = failure

    def begin(self, now: float) -> None:
        """A new attempt to bring all of them up; those that are there are up still."""
        self._seats.clear()
        self.failure = None
        for worker in self._workers.values():
            if worker.state is State.DONE:
                worker.state = State.UP
            worker.heard = now

    # -- ending

    def end(self, worker: Worker, now: float, out: list[Instruction]) -> None:
        """Ask a worker to end, once."""
        if worker.ending is None:
            worker.ending = now
            worker.end_again = now + self._policy.grace
            out.append(EndWorker(worker.number))

    def end_all(self, now: float, out: list[Instruction]) -> None:
        """Ask all of them."""
        for worker in self:
            self.end(worker, now, out)

    def press(self, now: float, out: list[Instruction]) -> None:
        """Kill those that were asked and are still there; give up those that cannot be killed."""
        for worker in self:
            if worker.ending is None:
                continue
            if now >= worker.ending + self._policy.end_timeout:
                del self._workers[worker.number]
            elif now >= worker.end_again:
                worker.end_again = now + self._policy.grace
                out.append(EndWorker(worker.number, force=True))

    def next_press(self) -> float | None:
        """When :meth:`press` has something to do."""
        ending = [one for one in self._workers.values() if one.ending is not None]
        return min(
            (min(one.end_again, (one.ending or 0.0) + self._policy.end_timeout) for one in ending),
            default=None,
        )

    def gone(self, number: int) -> Worker | None:
        """A worker's job has ended."""
        return self._workers.pop(number, None)


def delay(policy: Policy, failures: int) -> float:
    """Seconds before the next try after so many."""
    return min(policy.backoff * 2.0 ** min(failures - 1, 30), policy.backoff_cap)
