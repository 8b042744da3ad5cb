"""Plays the platform and the workers of a ring's machine: does what it says, when a test wants."""

from __future__ import annotations

from fiber._ring import events
from fiber._ring.events import (
    Admit,
    Change,
    Collect,
    Conclude,
    EndWorker,
    Forget,
    Form,
    Go,
    Halt,
    StartWorker,
)
from fiber._ring.machine import RingMachine
from fiber._ring.model import Failure, Group, Host
from fiber._ring.policy import Policy

DIED = Failure(reason="SIGNAL(9)", message="killed")
RAISED = Failure(reason="raised", message="ValueError: no")


class RingWorld:
    """A machine and what it believes to be outside of it."""

    def open(self, *groups, slots=1, workers=None, **policy):
        self.now = 0.0
        groups = groups or (Group(workers=workers or 3, slots=slots),)
        self.policy = Policy(**policy)
        self.machine = RingMachine(groups, self.policy)
        #: jobs that exist, with the instruction that made each
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
        for instruction in self.machine.handle(event, self.now):
            self.log.append(instruction)
            self.follow(instruction)
        return self

    def follow(self, told):
        assert not self.forgotten, f"{told} after everything was forgotten"
        if isinstance(told, StartWorker):
            assert told.worker not in self.jobs
            assert told.seat not in {
                job.seat for number, job in self.jobs.items() if number not in self.ending
            }, "two workers on one seat"
            self.jobs[told.worker] = told
        elif isinstance(told, Form):
            assert {placement.worker for placement in told.placements} <= self.up - self.ending
            assert told.round == self.round + 1
            self.round, self.forming, self.running = told.round, True, False
            self.members = told.placements
            ranks = [rank for placement in told.placements for rank in placement.ranks]
            assert ranks == list(range(len(ranks)))
        elif isinstance(told, Admit):
            assert self.running
            assert told.worker in self.up - self.ending
            self.newcomer = told.worker
        elif isinstance(told, Change):
            assert self.running
            assert told.round == self.round
            ranks = [rank for placement in told.placements for rank in placement.ranks]
            assert ranks == list(range(len(ranks)))
            assert not {placement.worker for placement in told.placements} & self.ending
            self.members = told.placements
        elif isinstance(told, Go):
            assert self.forming
            assert told.round == self.round
            self.forming, self.running = False, True
        elif isinstance(told, Collect):
            assert set(told.workers) <= {placement.worker for placement in self.members}
            self.collecting = True
        elif isinstance(told, EndWorker):
            self.ending.add(told.worker)
            if not (self.policy.keeps_workers or self.policy.is_live):
                self.running = self.forming = False
        elif isinstance(told, Halt):
            self.halting = True
        elif isinstance(told, Conclude):
            self.concluded.append(told.failure)
        elif isinstance(told, Forget):
            self.forgotten += 1

    # -- what may happen

    def start(self):
        return self.feed(events.StartAsked())

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
        return self.feed(events.Formed(self.round))

    def runs(self):
        """Whatever it takes from the start until user code runs."""
        return self.all_come_up().forms()

    def waits(self, worker, words):
        return self.feed(events.WorkerWaits(worker, words))

    def gone(self, worker, failure=DIED):
        self.jobs.pop(worker, None)
        self.up.discard(worker)
        self.ending.discard(worker)
        return self.feed(events.WorkerGone(worker, failure))

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
        return self.feed(events.Admitted(self.round, newcomer))

    def is_kept_out(self, failure):
        """They do not."""
        newcomer, self.newcomer = self.newcomer, None
        return self.feed(events.NotAdmitted(self.round, newcomer, failure))

    def collected(self):
        self.collecting = False
        return self.feed(events.Collected(self.round))

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

    def said(self, kind):
        """The instructions of a kind, so far."""
        return [one for one in self.log if isinstance(one, kind)]
