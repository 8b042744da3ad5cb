"""The state of a group, decided without a clock: events in, steps out."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fiber._agent.instructions import DESCRIPTORS_LOST
from fiber._base import values
from fiber._workers import state as module
from fiber._workers.state import MAX_JOBS, GiveUp, GroupState, Outlook, Report, Retire, Start, Stop
from fiber.exceptions import BackendUnavailableError, SubmitError
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind, Timing
from tasks_world import KILLED, LEFT, RUNNING, STOPPED, FakeJob

LEASE = 3.0
FULL = "0/1 nodes are available: 1 Insufficient cpu."
TIMING = Timing()


def job_of(ident, processes=1):
    return FakeJob(ident, processes, lambda job, status: None)


def status(state, *, code=None, reason=None, message="", processes=()):
    return JobStatus(
        state=state, reason=reason, exit_code=code, message=message, processes=processes
    )


SUSPENDED = status(JobState.SUSPENDED)


class Play:
    """A group state with a clock and the jobs it asked for."""

    #: what a platform answers that starts none
    refusal = None

    def __init__(self, desired, per_job=1, exit_report_timeout=None):
        self.group = GroupState(
            lease=LEASE, per_job=per_job, timing=TIMING, exit_report_timeout=exit_report_timeout
        )
        self.group.desired = desired
        self.now = 100.0
        self.jobs = []
        self.steps = []

    def run(self):
        """Take every step that is due; returns them."""
        steps = []
        while (step := self.group.next(self.now)) is not None:
            steps.append(step)
            if isinstance(step, Start) and self.refusal is not None:
                self.group.not_started(self.refusal, self.now, step.jobs)
            elif isinstance(step, Start):
                for _ in range(step.jobs):
                    job = job_of(str(len(self.jobs)), step.count)
                    self.jobs.append(job)
                    self.group.started(job, step.count)
            if isinstance(step, Stop):
                break
        self.steps += steps
        return steps

    def wait(self):
        """Let time pass until the next deadline; returns the steps."""
        self.now = max(self.now, self.group.deadline())
        return self.run()

    def pass_time(self, seconds):
        """Let time pass with all its deadlines, or until it ends; returns the steps."""
        until, steps = self.now + seconds, self.run()
        while (due := self.group.deadline()) is not None and due <= until:
            steps += self.wait()
        if not self.group.is_closing:
            self.now = until
        return steps

    def fail(self, times=1, how=KILLED, failure=""):
        """Lose the newest worker again and again; returns the steps after the last time."""
        for _ in range(times):
            self.jobs[-1].failure = failure
            self.lose(self.jobs[-1], how)
            steps = self.later()
        return steps

    def later(self):
        """Let more time pass than any back-off; returns the steps."""
        self.now += 10
        return self.run()

    def report(self, job, status):
        return self.group.observed(job, status, self.now)

    def up(self, *jobs):
        for job in jobs or self.jobs:
            self.report(job, RUNNING)
            for ident in [m.ident for m in self.group.workers.values() if m.child is job]:
                self.group.worker_ready(ident)

    def lose(self, job, how=KILLED):
        (loss,) = self.report(job, how)
        return loss


def started(desired, **options):
    """A play with the jobs that it asked for at first."""
    play = Play(desired, **options)
    play.run()
    return play


def at_work(desired, **options):
    """A play with all workers ready."""
    play = started(desired, **options)
    play.up()
    return play


def starts(steps):
    return [step.count for step in steps if isinstance(step, Start)]


class TestStarting:
    @pytest.mark.parametrize(
        "desired, per_job, jobs, idents",
        [(3, 1, [1, 1, 1], ["0", "1", "2"]), (5, 2, [2, 2, 1], ["0.0", "0.1", "1.0", "1.1", "2"])],
    )
    def test_as_many_are_started_as_are_desired(self, desired, per_job, jobs, idents):
        play = Play(desired, per_job=per_job)
        assert starts(play.run()) == jobs
        assert list(play.group.workers) == idents
        assert play.run() == []
        assert play.group.deadline() is None

    def test_the_missing_one_of_a_job_is_replaced_and_the_others_work_on(self):
        play = at_work(3, per_job=3)
        ended = ProcessStatus(index=1, state=JobState.FAILED, reason=Reason(ReasonKind.SIGNAL, 9))
        others = [ProcessStatus(index=n, state=JobState.RUNNING) for n in (0, 2)]
        (loss,) = play.report(play.jobs[0], status(JobState.RUNNING, processes=(*others, ended)))
        assert loss.ident == "0.1"
        assert starts(play.run()) == [1]
        assert sorted(play.group.workers) == ["0.0", "0.2", "1"]

    def test_one_that_asks_before_its_submission_returned_is_known_and_up(self):
        play = Play(1)
        play.group.starting += 1
        assert play.group.accepts("0")
        play.group.worker_ready("0")
        play.group.started(job_of("0"), 1)
        assert play.group.workers["0"].ready
        assert not play.group.accepts("stranger")

    def test_one_that_was_retired_before_its_submission_returned_ends_as_expected(self):
        play = Play(1)
        play.group.starting += 1
        play.group.worker_ready("0")
        play.group.worker_retired("0")
        job = job_of("0")
        play.group.started(job, 1)
        assert play.lose(job, LEFT).expected

    def test_a_late_event_of_one_that_has_ended_is_not_kept_for_another(self):
        play = started(1)
        play.lose(play.jobs[0])
        play.group.worker_retired("0")
        play.group.starting += 1
        play.group.started(job_of("0"), 1)
        assert not play.group.workers["0"].exit_sent

    def test_where_a_platform_takes_many_those_that_are_missing_come_in_one_call(self):
        play = Play(9, per_job=2)
        play.group.takes_many = True
        assert play.run() == [Start(2, 4), Start(1)]
        play.up()
        assert play.run() == []
        play.group.desired = 2 * MAX_JOBS + 10
        assert play.run() == [Start(2, MAX_JOBS), Start(1)]

    def test_after_a_failure_one_tries_whether_it_passes(self):
        play = Play(200)
        play.group.takes_many, play.refusal = True, SubmitError("quota")
        # all that one call was refused is one failure
        assert play.run()[:2] == [Start(1, 200), Start(1)]
        play.refusal = None
        assert starts(play.later())[:2] == [1, 1]
        play.up()
        assert play.run() == []

    def test_no_other_is_started_while_a_submission_is_under_way(self):
        group = Play(2).group
        assert isinstance(group.next(0.0), Start)
        assert group.next(0.0) is None


class TestFailingToStart:
    def test_the_pauses_grow_until_it_is_given_up_with_the_last_words(self):
        play, pauses = started(1), []
        while not play.group.is_closing:
            before = play.now
            play.lose(play.jobs[-1], status(JobState.FAILED, code=1, message="no such module"))
            play.run() or play.wait()
            pauses.append(round(play.now - before, 3))
        assert pauses[:-1] == list(TIMING.worker_backoff[:-1])
        give_up, stop = play.steps[-2:]
        assert isinstance(give_up, GiveUp)
        assert "6 workers in a row" in give_up.text
        assert "worker 5: no such module" in give_up.text
        assert isinstance(stop, Stop)

    def test_an_initializer_that_raises_is_given_up_sooner_and_is_the_cause(self):
        play, error = started(2), KeyError("initializer")
        for number in range(module.MAX_INITIALIZER_FAILURES):
            job = play.jobs[number]
            play.group.initializer_failed(job.ident, error)
            play.lose(job, status(JobState.FAILED, code=1))
            steps = play.later()
        assert isinstance(steps[0], GiveUp)
        assert steps[0].cause is error
        assert "initializer raised KeyError('initializer')" in steps[0].text

    @pytest.mark.parametrize(
        "how, host, is_given_up",
        [
            (ReasonKind.IMAGE, "n1", True),
            (ReasonKind.UNSCHEDULABLE, None, True),
            (ReasonKind.UNSCHEDULABLE, "n1", False),
            (ReasonKind.START, None, False),
        ],
    )
    def test_what_no_other_one_can_get_either_is_not_asked_for_again(self, how, host, is_given_up):
        play = started(2)
        for job in play.jobs[:2]:
            job.failure = "no such image"
            play.lose(job, values.evolve(status(JobState.FAILED, reason=Reason(how)), host=host))
            steps = play.run()
        assert any(isinstance(step, GiveUp) for step in steps) is is_given_up

    def test_one_that_was_started_with_the_others_or_runs_is_waited_for(self):
        play = started(3)
        no_image = status(JobState.FAILED, reason=Reason(ReasonKind.IMAGE))
        play.fail(3, no_image)
        # and so is another one that runs, for its host has the image
        play.report(play.jobs[-1], RUNNING)
        for job in play.jobs[:2]:
            play.lose(job, no_image)
            play.run()
        assert not any(isinstance(step, GiveUp) for step in play.steps)

    def test_after_one_was_ready_more_failures_are_allowed(self):
        play = at_work(1)
        for _ in range(module.MAX_FAILURES_PER_WORKER):
            assert starts(play.fail()) == [1]
        assert isinstance(play.fail()[0], GiveUp)

    def test_one_that_comes_up_ends_the_series(self):
        play = started(1)
        for _ in range(50):
            play.fail()
            play.up(play.jobs[-1])
        assert not any(isinstance(step, GiveUp) for step in play.steps)

    def test_nothing_is_given_up_while_somebody_works(self):
        play = started(2)
        play.up(play.jobs[0])
        for _ in range(100):
            play.group.initializer_failed(play.jobs[-1].ident, KeyError())
            assert starts(play.fail()) == [1]
        # nor at once when that one is lost
        play.lose(play.jobs[0])
        assert starts(play.run()) == [1]

    @pytest.mark.parametrize("come_up", [True, False])
    def test_others_on_their_way_are_waited_for_though_a_quota_has_no_room(self, come_up):
        play = started(5)
        for number in range(2, 2 + 2 * module.MAX_INITIALIZER_FAILURES):
            play.jobs[number].failure = "exceeded quota"
            play.lose(play.jobs[number])
            assert starts(play.later()) == [1]
        if come_up:
            play.up(*play.jobs[:2])
            for _ in range(20):
                assert starts(play.fail(failure="exceeded quota")) == [1]
            return
        play.lose(play.jobs[0])
        assert starts(play.later()) == [1]
        play.lose(play.jobs[1])
        (step,) = (step for step in play.run() if isinstance(step, GiveUp))
        assert "exceeded quota" in str(step.cause)

    def test_refused_submissions_are_tried_again_and_given_up(self):
        play = Play(1)
        play.refusal = SubmitError("quota")
        *steps, give_up, _ = play.pass_time(1000)
        assert len(starts(steps)) == module.MAX_INITIALIZER_FAILURES
        assert isinstance(give_up, GiveUp)
        assert give_up.cause is play.refusal
        assert "quota" in give_up.text


class TestPlatformThatCannotBeAsked:
    """A submission to an unavailable platform is no failure of workers: it is tried again."""

    AWAY = BackendUnavailableError("the engine does not answer")
    LOST = status(JobState.FAILED, reason=Reason(ReasonKind.NODE_LOST), message="engine away")

    @pytest.fixture
    def play(self):
        """A play whose two workers were at work and are lost, and which gets no others."""
        play = at_work(2)
        play.refusal = self.AWAY
        for job in play.jobs:
            play.lose(job)
        return play

    def test_it_is_asked_again_with_pauses_and_logged_once_and_then_the_pool_ends(self, play):
        began = play.now
        steps = play.pass_time(TIMING.outage - 5)
        assert not any(isinstance(step, GiveUp) for step in steps)
        # one every two seconds, not fifteen in the first two
        assert 20 <= len(starts(steps)) <= 40
        (reported,) = (step.text for step in steps if isinstance(step, Report))
        assert reported.endswith("the engine does not answer")
        assert "cannot be asked" in reported
        *_, give_up, stop = play.pass_time(1000)
        assert isinstance(give_up, GiveUp)
        assert isinstance(stop, Stop)
        assert give_up.cause is self.AWAY
        assert "no worker is left, and for 6" in give_up.text
        assert "the engine does not answer" in give_up.text
        assert play.now - began < TIMING.outage + 5

    def test_the_workers_start_once_it_answers(self, play):
        play.pass_time(30)
        play.refusal, steps = None, []
        while len(starts(steps)) < 2:
            steps += play.wait()
        assert starts(steps) == [1, 1]
        assert play.group.deadline() is None

    def test_workers_that_are_left_work_on_however_long_it_takes(self):
        play = at_work(2)
        play.refusal = self.AWAY
        play.lose(play.jobs[0])
        steps = play.pass_time(10 * TIMING.outage)
        assert not any(isinstance(step, GiveUp) for step in steps)
        assert len([step for step in steps if isinstance(step, Report)]) == 1
        # and is given up once that one is gone as well
        play.lose(play.jobs[1])
        assert isinstance(play.pass_time(5)[-2], GiveUp)

    def test_a_closing_pool_waits_for_nothing(self, play):
        play.pass_time(1)
        play.group.close()
        assert isinstance(play.run()[-1], Stop)

    def test_all_that_it_takes_with_it_before_they_are_up_are_one_failure(self):
        play = started(8)
        for job in list(play.jobs):
            job.failure = "it ended before it had reached its parent"
            play.lose(job, self.LOST)
        steps = play.run() or play.wait()
        assert starts(steps) == [1] * 8

    def test_workers_that_lose_their_places_again_and_again_are_given_up(self):
        play = started(4)
        rounds = 0
        while not any(isinstance(step, GiveUp) for step in play.steps):
            for job in play.jobs[-4:]:
                play.lose(job, self.LOST)
            rounds += 1
            play.run() or play.wait()
        assert rounds == len(TIMING.worker_backoff)
        assert "engine away" in next(s.text for s in play.steps if isinstance(s, GiveUp))


class TestDraining:
    """Workers whose place the platform takes away."""

    DRAINING = values.evolve(RUNNING, draining=True)

    def test_one_hands_back_what_it_has_not_begun_and_another_one_starts_at_once(self):
        play = at_work(2)
        assert play.report(play.jobs[0], self.DRAINING) == []
        assert play.run() == [Retire("0", hand_back=True), Start(1)]
        assert play.report(play.jobs[0], self.DRAINING) == []
        assert play.run() == []

    @pytest.mark.parametrize("was_ready", [False, True], ids=["starting", "dialling again"])
    def test_one_that_comes_up_afterwards_is_retired_then(self, was_ready):
        play = at_work(1) if was_ready else started(1)
        play.report(play.jobs[0], self.DRAINING)
        assert starts(play.run()) == [1]
        assert not play.group.worker_ready("0")
        assert play.run() == [Retire("0", True)]

    @pytest.mark.parametrize("leave", [lambda g: g.release("0"), GroupState.close])
    def test_one_that_finishes_what_it_holds_is_asked_to_hand_back_the_rest(self, leave):
        play = at_work(1)
        leave(play.group)
        assert play.run() == [Retire("0")]
        play.report(play.jobs[0], self.DRAINING)
        assert play.run() == [Retire("0", True)]

    def test_one_that_was_killed_is_sent_nothing(self):
        play = at_work(1)
        play.group.terminate(play.now)
        play.report(play.jobs[0], self.DRAINING)
        assert play.run() == []

    def test_when_all_have_to_go_the_pool_is_not_given_up_and_no_end_counts(self):
        play = at_work(3)
        for job in list(play.jobs):
            play.report(job, self.DRAINING)
        assert starts(play.run()) == [1, 1, 1]
        losses = [play.lose(job) for job in play.jobs[:3]]
        assert all(loss.expected and not loss.counts for loss in losses)
        assert play.run() == []

    def test_what_takes_longer_than_a_worker_may_live_is_not_begun_for_ever(self):
        play = at_work(1)
        play.report(play.jobs[0], self.DRAINING)
        limit = status(JobState.FAILED, reason=Reason(ReasonKind.TIME_LIMIT), message="1 h")
        assert play.lose(play.jobs[0], limit).counts


def waiting(words=FULL):
    return status(JobState.PENDING, message=words)


class TestPendingReport:
    """Workers that wait for a place: a pool goes on with those it has, and says why."""

    @pytest.mark.parametrize(
        "words, text", [([FULL], "1 waits for a place"), ([FULL, "another"], "2 wait for a place")]
    )
    def test_why_there_are_fewer_workers_is_logged_once_after_a_while(self, words, text):
        play = started(3)
        play.up(play.jobs[0])
        for job, message in zip(play.jobs[1:], words, strict=False):
            play.report(job, waiting(message))
        assert play.run() == []
        assert play.group.deadline() == play.now + TIMING.wait_report
        assert play.wait() == [Report(f"1 of 3 workers are ready, {text}: {FULL}")]
        play.report(play.jobs[1], waiting())
        assert play.group.deadline() is None

    def test_who_asks_is_told_at_once_why_there_are_fewer_workers(self):
        play = started(3)
        assert play.group.outlook() == Outlook(3, 0, 0, "")
        play.up(play.jobs[0])
        play.report(play.jobs[1], waiting())
        assert play.group.outlook() == Outlook(3, 1, 1, FULL)
        play.up()
        assert play.group.outlook() == Outlook(3, 3, 0, "")

    def test_nothing_is_logged_where_all_are_up_before_it_is_due(self):
        play = started(2)
        play.fail()
        play.up(*play.jobs[:1], play.jobs[-1])
        play.now += TIMING.wait_report
        assert play.run() == []

    @pytest.mark.parametrize("follows", [RUNNING, status(JobState.PENDING)])
    def test_one_that_is_on_its_way_soon_is_not_logged(self, follows):
        play = started(1)
        play.report(play.jobs[0], waiting())
        play.report(play.jobs[0], follows)
        assert play.group.deadline() is None

    def test_another_text_is_logged_after_a_while(self):
        play = started(1)
        play.report(play.jobs[0], waiting())
        play.wait()
        logged = play.now
        play.now += 5
        play.report(play.jobs[0], waiting("0/2 nodes are available"))
        assert play.group.deadline() == logged + TIMING.wait_report_again
        assert play.wait() == [
            Report("0 of 1 workers are ready, 1 waits for a place: 0/2 nodes are available")
        ]

    def test_those_that_have_a_place_and_are_not_started_yet_do_not_wait_for_one(self):
        play = started(4)
        for job, message in zip(play.jobs, ("FailedMount: none", FULL, "x", "y"), strict=True):
            play.report(job, values.evolve(waiting(message), is_starting=message != FULL))
        # its host has no device left, which is a place
        full = values.evolve(waiting(), host="n1", reason=Reason(ReasonKind.UNSCHEDULABLE))
        play.report(play.jobs[3], full)
        text = "0 of 4 workers are ready, 2 are starting: FailedMount: none"
        assert play.wait() == [Report(text)]

    @pytest.mark.parametrize(
        "end, text",
        [
            (
                status(JobState.FAILED, message="exceeded quota"),
                "did not start: worker 1: exceeded quota",
            ),
            (KILLED, "ended before it was ready: worker 1: killed"),
        ],
    )
    def test_one_that_fails_is_tried_again_and_logged_at_once_as_what_it_was(self, end, text):
        play = started(3)
        play.up(play.jobs[0])
        # a platform reports what has no fiber in it as running too
        play.report(play.jobs[2], RUNNING)
        play.lose(play.jobs[1], end)
        assert Report(f"1 of 3 workers are ready; another one {text}") in play.run()
        assert starts(play.steps)[3:] == [1]

    def test_one_that_the_platform_refuses_is_logged_in_its_words(self):
        play = Play(1)
        play.refusal = SubmitError("no such image")
        text = "0 of 1 workers are ready; another one could not be started: no such image"
        assert Report(text) in play.run()


class TestLeaving:
    def test_the_newest_in_surplus_are_retired(self):
        play = at_work(3)
        play.group.desired = 1
        assert play.run() == [Retire("1"), Retire("2")]
        assert play.run() == []

    def test_one_that_is_not_ready_yet_is_retired_once_it_is(self):
        play = started(1)
        play.report(play.jobs[0], RUNNING)
        play.group.close()
        assert play.run() == []
        assert not play.group.worker_ready("0")
        assert play.run() == [Retire("0")]

    def test_one_that_still_waits_for_its_place_is_ended(self):
        play = started(1)
        play.group.close()
        (kill,) = play.run()
        assert kill.worker.ident == "0"
        assert kill.whole

    def test_one_that_was_released_is_not_replaced(self):
        play = at_work(2)
        play.group.release("0")
        play.group.release("0")
        assert play.run() == [Retire("0")]
        assert play.group.desired == 1
        play.lose(play.jobs[0], LEFT)
        assert play.run() == []

    def test_one_that_was_sent_retire_may_take_its_time(self):
        play = at_work(1)
        play.group.close()
        play.run()
        play.group.worker_disconnected("0", play.now)
        play.now += 1000
        assert play.run() == []
        play.lose(play.jobs[0], LEFT)
        assert play.run() == [Stop()]

    def test_an_end_after_maxtasksperchild_is_expected_and_replaced(self):
        play = at_work(1)
        play.group.worker_retired("0")
        loss = play.lose(play.jobs[0], LEFT)
        assert loss.expected
        assert starts(play.run()) == [1]

    def test_terminated_all_are_killed_and_none_is_started(self):
        play = started(4, per_job=2)
        assert play.group.terminate(play.now) == play.jobs
        assert play.run() == []
        for job in play.jobs:
            losses = play.report(job, KILLED)
            assert all(loss.expected and not loss.counts for loss in losses)
        assert play.run() == [Stop()]

    def test_it_does_not_end_while_a_submission_is_under_way(self):
        group = Play(0).group
        group.starting = 1
        group.close()
        assert group.next(0.0) is None

    def test_a_closed_group_with_missing_workers_waits_for_events_alone(self):
        play = at_work(3)
        play.group.close()
        play.run()
        play.lose(play.jobs[0], LEFT)
        assert play.run() == []
        assert play.group.deadline() is None


class TestSilence:
    def test_a_stopped_worker_is_ended_after_its_lease(self):
        play = at_work(1)
        play.report(play.jobs[0], STOPPED)
        assert play.group.deadline() == play.now + LEASE
        (kill,) = play.wait()
        assert kill.worker.ident == "0"
        loss = play.lose(play.jobs[0])
        assert str(loss.attempt.reason) == "LEASE"
        assert not loss.counts
        assert not loss.expected

    def test_one_that_goes_on_in_time_is_not_and_a_second_report_renews_no_lease(self):
        play = at_work(1)
        play.report(play.jobs[0], STOPPED)
        due = play.group.deadline()
        play.now += LEASE - 0.1
        play.report(play.jobs[0], STOPPED)
        assert play.group.deadline() == due
        play.report(play.jobs[0], RUNNING)
        assert play.group.deadline() is None

    def test_one_that_its_platform_suspended_is_left_alone_and_logged_once(self):
        play = at_work(2)
        play.report(play.jobs[0], SUSPENDED)
        assert play.run() == []
        (reported,) = play.wait()
        assert reported == Report(
            "worker 0 is suspended by its platform, and keeps its tasks until it goes on"
        )
        play.report(play.jobs[0], SUSPENDED)
        play.now += 100 * LEASE
        assert play.run() == []
        assert play.group.deadline() is None
        assert "0" in play.group.workers

    def test_nor_is_the_end_of_its_connection_held_against_it_before_it_goes_on(self):
        play = at_work(1)
        play.report(play.jobs[0], SUSPENDED)
        play.group.worker_disconnected("0", play.now)
        play.now += 100 * LEASE
        assert [type(step) for step in play.run()] == [Report]
        play.report(play.jobs[0], RUNNING)
        assert play.group.deadline() == play.now + TIMING.exit_report
        (kill,) = play.wait()
        assert kill.worker.ident == "0"

    @pytest.mark.parametrize(
        "within,counts,reason", [(None, True, "SIGNAL(9)"), (LEASE + 1, False, "LEASE")]
    )
    def test_a_lost_connection_counts_as_a_death_where_no_network_is_to_blame(
        self, within, counts, reason
    ):
        play = at_work(2, exit_report_timeout=within)
        for ident in play.group.workers:
            play.group.worker_disconnected(ident, play.now)
        # this one has connected again
        play.group.worker_ready("1")
        assert play.group.deadline() == play.now + (within or TIMING.exit_report)
        # it is killed once more where it does not end
        for _ in range(2):
            assert [kill.worker.ident for kill in play.wait()] == ["0"]
        loss = play.lose(play.jobs[0])
        assert loss.counts is counts
        assert str(loss.attempt.reason) == reason
        assert ("its connection ended" in loss.attempt.message) is counts

    def test_one_that_is_stopped_besides_is_not_to_blame(self):
        play = at_work(1)
        play.report(play.jobs[0], STOPPED)
        play.group.worker_disconnected("0", play.now)
        play.wait()
        assert not play.lose(play.jobs[0]).counts

    def test_after_a_late_turn_deadlines_start_anew(self):
        play = at_work(2)
        play.report(play.jobs[0], STOPPED)
        play.group.worker_disconnected("1", play.now)
        due = play.group.deadline()
        play.now = due + TIMING.lateness + 0.1
        assert play.run() == []
        assert play.group.deadline() == play.now + TIMING.exit_report
        # the second time it is meant
        assert [kill.worker.ident for kill in play.wait()] == ["1"]
        assert [kill.worker.ident for kill in play.wait()] == ["0"]


class TestLosses:
    @pytest.mark.parametrize(
        "kind, counts, told",
        [
            (ReasonKind.SIGNAL, True, "SIGNAL"),
            (ReasonKind.OOM, True, "OOM"),
            (ReasonKind.EVICTED, False, "EVICTED"),
            (ReasonKind.CANCELLED, False, "CANCELLED"),
            (ReasonKind.TIME_LIMIT, True, "TIME_LIMIT"),
            (None, True, "UNKNOWN"),
        ],
    )
    def test_a_death_counts_where_the_work_may_be_to_blame_and_once(self, kind, counts, told):
        play = at_work(1)
        reason = kind and Reason(kind)
        loss = play.lose(play.jobs[0], status(JobState.FAILED, reason=reason, message="so"))
        assert (loss.counts, str(loss.attempt.reason)) == (counts, told)
        assert not loss.expected
        assert (loss.attempt.worker, loss.attempt.host) == ("worker 0", "here")
        assert loss.attempt.message == "so"
        assert play.report(play.jobs[0], KILLED) == []

    def test_the_word_on_a_process_goes_before_that_on_its_job(self):
        play = started(2, per_job=2)
        part = ProcessStatus(index=0, state=JobState.FAILED, message="left", log_tail=("last",))
        lost = status(JobState.FAILED, message="lost", processes=(part,))
        first, second = play.report(play.jobs[0], lost)
        assert (first.attempt.message, first.attempt.log_tail) == ("left", ("last",))
        assert second.attempt.message == "lost"

    def test_of_one_whose_task_closed_its_descriptors_the_error_says_so(self):
        play = at_work(1)
        reason = Reason(ReasonKind.EXIT, DESCRIPTORS_LOST)
        ended = status(JobState.FAILED, code=DESCRIPTORS_LOST, reason=reason, message="ended")
        loss = play.lose(play.jobs[0], ended)
        assert loss.counts
        assert loss.attempt.message.startswith("ended: has a task closed or replaced")


class Histories(RuleBasedStateMachine):
    """Whatever happens, no more live than are wished for, and every history ends."""

    def __init__(self):
        super().__init__()
        self.play = Play(3, per_job=2)

    def workers(self):
        return list(self.play.group.workers.values())

    @rule()
    def act(self):
        self.play.run()

    @rule(seconds=st.floats(0.01, 8))
    def pass_time(self, seconds):
        self.play.now += seconds

    @precondition(lambda self: self.workers())
    @rule(
        data=st.data(),
        state=st.sampled_from(["up", "stopped", "suspended", "running", "cut", "broken", "lost"]),
    )
    def happen(self, data, state):
        group, now = self.play.group, self.play.now
        worker = data.draw(st.sampled_from(self.workers()))
        parts = {
            "stopped": JobState.SUSPENDED,
            "suspended": JobState.SUSPENDED,
            "running": JobState.RUNNING,
            "lost": JobState.FAILED,
        }
        if state == "up":
            group.worker_ready(worker.ident)
        elif state == "cut":
            group.worker_disconnected(worker.ident, now)
        elif state == "broken":
            group.initializer_failed(worker.ident, KeyError())
        else:
            reason = STOPPED.reason if state == "stopped" else None
            part = ProcessStatus(index=worker.index, state=parts[state], reason=reason)
            others = [
                ProcessStatus(index=m.index, state=JobState.RUNNING)
                for m in self.workers()
                if m.child is worker.child and m is not worker
            ]
            self.play.report(worker.child, status(JobState.RUNNING, processes=(part, *others)))

    @precondition(lambda self: not self.play.group.is_closing)
    @rule(desired=st.integers(0, 5))
    def resize(self, desired):
        self.play.group.desired = desired

    @rule()
    def close(self):
        self.play.group.close()

    @invariant()
    def no_more_than_desired_stay(self):
        steps = self.play.run()
        group = self.play.group
        staying = [m for m in self.workers() if not m.leaving]
        assert len(staying) <= group.desired or group.is_closing
        if not self.workers() and group.is_closing:
            assert steps[-1:] == [Stop()] or isinstance(self.play.steps[-1], Stop)

    def teardown(self):
        group = self.play.group
        group.terminate(self.play.now)
        for job in self.play.jobs:
            self.play.report(job, KILLED)
        self.play.run()
        assert self.play.steps[-1] == Stop()


# a busy machine takes a minute for what takes seconds
TestHistories = pytest.mark.timeout(600)(Histories.TestCase)
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
