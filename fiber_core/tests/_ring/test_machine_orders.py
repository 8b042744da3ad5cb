"""The state machine ends and leaves no worker, whatever the order of events."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fiber._ring import events
from fiber._ring.model import Failure, RingPhase
from fiber._ring.policy import Clean
from fiber._ring.timing import RingTiming
from ring_world import DIED, RAISED, RingWorld


class EventOrders(RingWorld, RuleBasedStateMachine):
    @initialize(
        workers=st.integers(1, 4),
        elastic=st.booleans(),
        max_restarts=st.integers(0, 2),
        backoff_limit=st.integers(0, 2),
        deadline=st.sampled_from([None, 40.0]),
        ttl=st.sampled_from([None, 3.0]),
        clean=st.sampled_from(Clean),
        changes=st.sampled_from(["restart", "keep", "live"]),
    )
    def begin(self, workers, elastic, max_restarts, backoff_limit, deadline, ttl, clean, changes):
        self.open(
            workers=workers,
            min=1 if elastic else None,
            max=5 if elastic else None,
            max_restarts=max_restarts,
            backoff_limit=backoff_limit,
            deadline=deadline,
            ttl=ttl,
            clean=clean,
            keeps_workers=changes == "keep",
            is_live=changes == "live",
            start_timeout=20.0,
            timing=RingTiming(last_call=5.0),
            heartbeat=8.0,
        )
        self.start()

    @rule(data=st.data(), host=st.sampled_from("abc"))
    def one_comes_up(self, data, host):
        waiting = sorted(set(self.jobs) - self.up)
        if waiting:
            self.comes_up(data.draw(st.sampled_from(waiting)), host)

    @rule(data=st.data(), failure=st.sampled_from([DIED, None]))
    def one_is_gone(self, data, failure):
        if self.jobs:
            self.gone(data.draw(st.sampled_from(sorted(self.jobs))), failure)

    @rule(data=st.data())
    def one_raises(self, data):
        if self.running and self.members:
            place = data.draw(st.sampled_from(self.members))
            self.feed(events.WorkerFailed(place.worker, RAISED))

    @rule(data=st.data())
    def one_is_done(self, data):
        if self.running and self.members:
            self.feed(events.WorkerDone(data.draw(st.sampled_from(self.members)).worker))

    @rule()
    def all_send_heartbeats(self):
        for worker in list(self.jobs):
            self.feed(events.WorkerHeartbeat(worker))

    @precondition(lambda self: self.forming)
    @rule(well=st.booleans())
    def it_forms(self, well):
        if well:
            self.forms()
        else:
            self.feed(events.RendezvousFailed(self.round, Failure(reason="Unreachable")))

    @precondition(lambda self: self.newcomer is not None)
    @rule(well=st.booleans())
    def a_newcomer_is_met(self, well):
        if well:
            self.joins()
        else:
            self.is_kept_out(Failure(reason="Unreachable"))

    @precondition(lambda self: self.collecting)
    @rule()
    def states_arrive(self):
        self.collected()

    @precondition(lambda self: self.halting)
    @rule()
    def it_halts(self):
        self.halting = False
        self.feed(events.Halted(self.round))

    @rule()
    def those_that_are_ended_end(self):
        self.those_ending_end()

    @rule(seconds=st.sampled_from([0.0, 0.6, 3.0, 9.0]))
    def time_passes(self, seconds):
        self.passes(seconds)

    @rule(
        event=st.sampled_from(
            [
                events.SuspendRequested(),
                events.ResumeRequested(),
                events.ResumeRequested(),
                events.Tick(),
            ]
        )
    )
    def its_user_asks(self, event):
        self.feed(event)

    @precondition(lambda self: self.policy.min is not None)
    @rule(workers=st.integers(1, 5))
    def it_is_resized(self, workers):
        self.feed(events.ResizeRequested(workers))

    @rule(late=st.integers(0, 3))
    def old_news_changes_nothing(self, late):
        before = self.machine.phase
        for event in (
            events.RendezvousCompleted(-1),
            events.StateCollected(-1),
            events.RoundEnded(-1, DIED),
        ):
            self.feed(event)
        self.feed(events.WorkerEnded(-late - 1, DIED))
        assert self.machine.phase is before

    @invariant()
    def the_outcome_is_published_once(self):
        if hasattr(self, "machine"):
            assert len(self.concluded) == self.machine.phase.is_over

    @invariant()
    def what_is_due_is_ahead(self):
        if hasattr(self, "machine"):
            due = self.machine.next_deadline()
            assert due is None or due > self.now

    @invariant()
    def only_what_the_policy_allows_is_spent(self):
        if hasattr(self, "machine"):
            assert self.status.restarts <= self.policy.max_restarts

    def teardown(self):
        if not hasattr(self, "machine"):
            return
        # left alone it ends, or waits for its user
        for _ in range(200):
            if self.machine.phase.is_over:
                break
            if self.machine.phase is RingPhase.SUSPENDED:
                # but for those that could not be killed within the policy's time, and were given up
                assert not set(self.jobs) - self.ending
                self.feed(events.TerminateRequested())
                continue
            self.those_ending_end()
            if self.halting:
                self.it_halts()
            # nobody comes up, nobody is heard
            self.passes(25.0)
            if self.running and self.machine.phase is RingPhase.RUNNING:
                # all are done, and stay silent
                self.all_done()
        assert self.machine.phase.is_over, self.machine.phase
        self.feed(events.TerminateRequested())
        if self.halting:
            self.halting = False
        self.those_ending_end()
        self.passes(60.0)
        assert self.forgotten == 1
        assert not set(self.jobs) - self.ending


TestEventOrders = EventOrders.TestCase
