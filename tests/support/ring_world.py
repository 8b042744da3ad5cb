"""Model of the platform and workers around a ring's state machine, driven by tests."""

from __future__ import annotations

from fiber._ring import events
from fiber._ring.events import (
    CleanUp,
    CollectState,
    Conclude,
    EndWorker,
    Halt,
    StartJoin,
    StartRendezvous,
    StartRun,
    StartWorker,
    UpdateMembers,
)
from fiber._ring.machine import RingMachine
from fiber._ring.model import Failure, Group, Host
from fiber._ring.policy import Policy
from fiber._ring.timing import RingTiming

DIED = Failure(reason="SIGNAL(9)", message="killed")
RAISED = Failure(reason="raised", message="ValueError: no")


class RingWorld:
    """A state machine and the jobs, members and rounds that its commands imply."""

    def open(self, *, workers, slots=1, timing=RingTiming(), **policy):
        self.now = 0.0
        self.policy = Policy(timing=timing, **policy)
        self.machine = RingMachine((Group(workers=workers, slots=slots),), self.policy)
        #: jobs that exist, with the command that made each
        self.jobs = {}
        self.hosts = {}
        self.up = set()
        self.ending = set()
        self.round = 0
        self.forming = self.running = self.collecting = self.halting = False
        self.members = ()
        #: the newcomer that is to be brought together with those that run
        self.newcomer = None
        self.concluded = []
        self.forgotten = 0
        self.log = []

    def feed(self, event):
        self.log.append(event)
        for command in self.machine.handle(event, self.now):
            self.log.append(command)
            self.follow(command)
        return self

    def follow(self, command):
        assert not self.forgotten, f"{command} after everything was forgotten"
        if isinstance(command, StartWorker):
            assert command.worker not in self.jobs
            assert command.seat not in {
                job.seat for number, job in self.jobs.items() if number not in self.ending
            }, "two workers on one seat"
            self.jobs[command.worker] = command
        elif isinstance(command, StartRendezvous):
            assert {placement.worker for placement in command.placements} <= self.up - self.ending
            assert command.round == self.round + 1
            self.round, self.forming, self.running = command.round, True, False
            self.members = command.placements
            ranks = [rank for placement in command.placements for rank in placement.ranks]
            assert ranks == list(range(len(ranks)))
        elif isinstance(command, StartJoin):
            assert self.running
            assert command.worker in self.up - self.ending
            self.newcomer = command.worker
        elif isinstance(command, UpdateMembers):
            assert self.running
            assert command.round == self.round
            ranks = [rank for placement in command.placements for rank in placement.ranks]
            assert ranks == list(range(len(ranks)))
            assert not {placement.worker for placement in command.placements} & self.ending
            self.members = command.placements
        elif isinstance(command, StartRun):
            assert self.forming
            assert command.round == self.round
            self.forming, self.running = False, True
        elif isinstance(command, CollectState):
            assert set(command.workers) <= {placement.worker for placement in self.members}
            self.collecting = True
        elif isinstance(command, EndWorker):
            self.ending.add(command.worker)
            if not (self.policy.keeps_workers or self.policy.is_live):
                self.running = self.forming = False
        elif isinstance(command, Halt):
            self.halting = True
        elif isinstance(command, Conclude):
            self.concluded.append(command.failure)
        elif isinstance(command, CleanUp):
            self.forgotten += 1

    # -- what may happen

    def start(self):
        return self.feed(events.StartRequested())

    def comes_up(self, worker, host="a"):
        self.up.add(worker)
        self.hosts[worker] = host
        return self.feed(events.WorkerUp(worker, Host(host, host)))

    def all_come_up(self, host="a"):
        for worker in list(self.jobs):
            if worker not in self.up:
                self.comes_up(worker, host)
        return self

    def forms(self):
        return self.feed(events.RendezvousCompleted(self.round))

    def runs(self):
        """Whatever it takes from the start until user code runs."""
        return self.all_come_up().forms()

    def waits(self, worker, words):
        return self.feed(events.WorkerPending(worker, words))

    def gone(self, worker, failure=DIED):
        self.jobs.pop(worker, None)
        self.up.discard(worker)
        self.ending.discard(worker)
        return self.feed(events.WorkerEnded(worker, failure))

    def those_ending_end(self):
        for worker in sorted(self.ending):
            self.gone(worker, None)
        return self

    def all_done(self):
        for placement in self.members:
            self.feed(events.WorkerDone(placement.worker))
        return self

    def joins(self):
        """The newcomer and those that run know each other."""
        newcomer, self.newcomer = self.newcomer, None
        return self.feed(events.JoinCompleted(self.round, newcomer))

    def is_kept_out(self, failure):
        """They do not."""
        newcomer, self.newcomer = self.newcomer, None
        return self.feed(events.JoinFailed(self.round, newcomer, failure))

    def collected(self):
        self.collecting = False
        return self.feed(events.StateCollected(self.round))

    def passes(self, seconds):
        """Time passes; ticks come when they are due."""
        end = self.now + seconds
        for _ in range(1000):
            due = self.machine.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.feed(events.Tick())
        else:
            raise AssertionError("ticks without end")
        self.now = end
        return self.feed(events.Tick())

    @property
    def status(self):
        return self.machine.status()

    @property
    def phase(self):
        return self.machine.phase.value

    def all_of(self, kind):
        """The commands of a kind, so far."""
        return [one for one in self.log if isinstance(one, kind)]
