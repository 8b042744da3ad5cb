"""Any order of calls: jobs are submitted, ended and asked about as hypothesis likes.

The calls that hypothesis puts in any order; see :mod:`fiber.testing.kit.machine`.
"""

from __future__ import annotations

import signal
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fiber.exceptions import UnknownJobError
from fiber.model import Job, JobState
from fiber.testing import programs
from fiber.testing.kit.driver import Driver
from fiber.testing.kit.platform import Platform

__all__ = ["AnyOrder", "Calls"]

_INDEX = st.integers(min_value=0, max_value=1000)
_MOST = 6


class Calls(RuleBasedStateMachine):
    """Rules; what each must bring about is the story's to judge.

    Args:
        story: what was done so far.
    """

    def __init__(self, story: Story) -> None:
        super().__init__()
        self.story = story

    def _some(self, index: int) -> Known:
        return self.story.jobs[index % len(self.story.jobs)]

    @precondition(lambda self: len(self.story.jobs) < _MOST)
    @rule(code=st.sampled_from([None, None, 0, 3, 255]))
    def submit(self, code: int | None) -> None:
        """Submit a job."""
        self.story.submit(code)

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX, grace=st.sampled_from([0.0, 0.1, 60.0]))
    def terminate(self, index: int, grace: float) -> None:
        """Terminate one."""
        self.story.terminate(self._some(index), grace)

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX)
    def kill(self, index: int) -> None:
        """Kill one."""
        self.story.kill(self._some(index))

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX)
    def wait(self, index: int) -> None:
        """Wait for the end of one."""
        self.story.wait(self._some(index))

    @precondition(lambda self: self.story.jobs)
    @rule(indexes=st.lists(_INDEX, max_size=4))
    def ask(self, indexes: list[int]) -> None:
        """Ask how some stand."""
        self.story.ask([self._some(index) for index in indexes])

    @precondition(lambda self: self.story.jobs)
    @rule(index=_INDEX)
    def read(self, index: int) -> None:
        """Read the lines of one."""
        self.story.read(self._some(index))

    @rule()
    def count(self) -> None:
        """List them."""
        self.story.count()

    @precondition(lambda self: self.story.jobs)
    @rule()
    def clean_up(self) -> None:
        """End the run's jobs; the next ones belong to the same run."""
        self.story.clean_up()

    def teardown(self) -> None:
        """The next sequence begins with none."""
        self.story.clean_up()


# ruff: noqa: D102  a test's name is its sentence


@attrs.define
class Known:
    """A job, and what may have become of it."""

    job: Job
    #: exit codes with which it may end now
    codes: set[int]
    #: True where it ends although nobody tells it to
    ends: bool
    #: the terminal status that was seen
    end: int | None = None


class AnyOrder(Platform):
    """One test, with a state machine in it."""

    level = 6

    #: how many sequences of calls are tried, and how many calls each has
    machine_examples: int = 8
    machine_steps: int = 14

    @pytest.mark.timeout(300)
    def test_any_order_of_calls_tells_the_truth(self, kit: Driver) -> None:
        from hypothesis import HealthCheck, Phase, settings, stateful

        declared = self.declared(kit.backend)
        # typed for classes in some versions and not at all in others, and a factory does
        run: Any = stateful.run_state_machine_as_test
        run(
            lambda: Calls(Story(kit, logs=declared.logs)),
            settings=settings(
                max_examples=self.machine_examples,
                stateful_step_count=self.machine_steps,
                deadline=None,
                derandomize=True,
                database=None,
                # each call is a job or a process: to find a shorter sequence would take minutes
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )


class Story:
    """What was done to a backend and what it must answer therefore.

    Args:
        kit: runs the jobs.
        logs: whether their lines can be asked for.
    """

    def __init__(self, kit: Driver, *, logs: bool) -> None:
        self._kit = kit
        self._logs = logs
        self.jobs: list[Known] = []

    def submit(self, code: int | None) -> None:
        """A job that ends with a code, or waits."""
        argv = programs.sleep_forever() if code is None else programs.exit_with(code)
        codes = set() if code is None else {code}
        self.jobs.append(Known(self._kit.submit(argv), codes, ends=code is not None))

    def terminate(self, known: Known, grace: float) -> None:
        """SIGTERM, and SIGKILL later."""
        self._kit.backend.terminate(known.job, grace=grace)
        if known.end is None:
            known.codes |= {-signal.SIGTERM, -signal.SIGKILL}
            known.ends = True

    def kill(self, known: Known) -> None:
        """SIGKILL."""
        self._kit.backend.kill(known.job)
        if known.end is None:
            known.codes.add(-signal.SIGKILL)
            known.ends = True

    def wait(self, known: Known) -> None:
        """The end of a job that ends."""
        if known.ends:
            self._saw(known, self._kit.end(known.job).exit_code)

    def ask(self, several: list[Known]) -> None:
        """How jobs stand, all at once."""
        statuses = self._kit.backend.status([known.job for known in several])
        assert len(statuses) == len(several)
        for known, status in zip(several, statuses, strict=True):
            if status.state.is_terminal:
                self._saw(known, status.exit_code)
            else:
                assert known.end is None, f"{known} had ended and is {status}"
                assert status.exit_code is None
                assert status.state in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)

    def read(self, known: Known) -> None:
        """The lines of a job: all that it ever says is that it is ready."""
        if self._logs:
            assert list(self._kit.backend.logs(known.job)) in ([], ["ready"])

    def count(self) -> None:
        """Every job that has not ended is listed, and nothing that never was."""
        listed = [job.id for job in self._kit.backend.list(self._kit.run_id)]
        assert len(set(listed)) == len(listed)
        assert set(listed) <= {known.job.id for known in self.jobs}
        assert {known.job.id for known in self.jobs if not known.ends} <= set(listed)

    def clean_up(self) -> None:
        """End all jobs; nobody knows them afterwards, or knows them as ended."""
        self._kit.backend.cleanup(self._kit.run_id)
        assert list(self._kit.backend.list(self._kit.run_id)) == []
        for known in self.jobs:
            try:
                (status,) = self._kit.backend.status([known.job])
            except UnknownJobError:
                continue
            assert status.state.is_terminal, f"{known} outlived its run: {status}"
        self.jobs.clear()

    def _saw(self, known: Known, code: int | None) -> None:
        assert known.ends, f"{known} ended with {code}, and nobody told it to"
        assert code in known.codes, f"{known} ended with {code}"
        assert known.end in (None, code), f"{known} ended with {code} now"
        known.end = code
