"""Conformance kit for backends: :class:`BackendConformance`, a class of tests to subclass; its test of any order of calls."""

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
from fiber.testing.kit.core import CoreApi
from fiber.testing.kit.delivery import Delivery, Output, Streams
from fiber.testing.kit.faults import Faults, Scale, Witnessed
from fiber.testing.kit.lifecycle import Lifecycle, Stops
from fiber.testing.kit.options import Groups, Options
from fiber.testing.kit.platform import Driver, Platform

_INDEX = st.integers(min_value=0, max_value=1000)
_MAX_JOBS = 6


class JobMachine(RuleBasedStateMachine):
    """State machine whose rules call the backend; the model checks the results.

    Args:
        model: the expected state.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def _some(self, index: int) -> ModelJob:
        return self.model.jobs[index % len(self.model.jobs)]

    @precondition(lambda self: len(self.model.jobs) < _MAX_JOBS)
    @rule(code=st.sampled_from([None, None, 0, 3, 255]))
    def submit(self, code: int | None) -> None:
        """Submit a job."""
        self.model.submit(code)

    @precondition(lambda self: self.model.jobs)
    @rule(index=_INDEX, grace=st.sampled_from([0.0, 0.1, 60.0]))
    def terminate(self, index: int, grace: float) -> None:
        """Terminate a job."""
        self.model.terminate(self._some(index), grace)

    @precondition(lambda self: self.model.jobs)
    @rule(index=_INDEX)
    def kill(self, index: int) -> None:
        """Kill a job."""
        self.model.kill(self._some(index))

    @precondition(lambda self: self.model.jobs)
    @rule(index=_INDEX)
    def wait(self, index: int) -> None:
        """Wait for the end of a job."""
        self.model.wait(self._some(index))

    @precondition(lambda self: self.model.jobs)
    @rule(indexes=st.lists(_INDEX, max_size=4))
    def ask(self, indexes: list[int]) -> None:
        """Query the statuses of some jobs."""
        self.model.ask([self._some(index) for index in indexes])

    @precondition(lambda self: self.model.jobs)
    @rule(index=_INDEX)
    def read(self, index: int) -> None:
        """Read the lines of a job."""
        self.model.read(self._some(index))

    @rule()
    def count(self) -> None:
        """List the jobs."""
        self.model.count()

    @precondition(lambda self: self.model.jobs)
    @rule()
    def clean_up(self) -> None:
        """End the run's jobs; the next ones belong to the same run."""
        self.model.clean_up()

    def teardown(self) -> None:
        """End all jobs before the next sequence."""
        self.model.clean_up()


# ruff: noqa: D102  a test's name is its sentence


@attrs.define
class ModelJob:
    """A job with its possible exit codes."""

    job: Job
    #: exit codes with which it may end now
    codes: set[int]
    #: True where it is certain to end
    ends: bool
    #: the terminal status that was seen
    end: int | None = None


class AnyOrder(Platform):
    """Test of a state machine of calls."""

    level = 6

    #: number of sequences of calls, and of calls in each
    machine_examples: int = 8
    machine_steps: int = 14

    @pytest.mark.timeout(300)
    def test_any_order_of_calls_tells_the_truth(self, kit: Driver) -> None:
        from hypothesis import HealthCheck, Phase, settings, stateful

        declared = self.declared(kit.backend)
        # typed for classes in some versions and not at all in others, and a factory does
        run: Any = stateful.run_state_machine_as_test
        run(
            lambda: JobMachine(Model(kit, logs=declared.logs)),
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


class Model:
    """Expected state of the jobs of a backend.

    Args:
        kit: driver of the jobs.
        logs: True where their lines can be read.
    """

    def __init__(self, kit: Driver, *, logs: bool) -> None:
        self._kit = kit
        self._logs = logs
        self.jobs: list[ModelJob] = []

    def submit(self, code: int | None) -> None:
        """Submit a job that ends with a code, or waits."""
        argv = programs.sleep_forever() if code is None else programs.exit_with(code)
        codes = set() if code is None else {code}
        self.jobs.append(ModelJob(self._kit.submit(argv), codes, ends=code is not None))

    def terminate(self, known: ModelJob, grace: float) -> None:
        """Terminate a job."""
        self._kit.backend.terminate(known.job, grace=grace)
        if known.end is None:
            known.codes |= {-signal.SIGTERM, -signal.SIGKILL}
            known.ends = True

    def kill(self, known: ModelJob) -> None:
        """Kill a job."""
        self._kit.backend.kill(known.job)
        if known.end is None:
            known.codes.add(-signal.SIGKILL)
            known.ends = True

    def wait(self, known: ModelJob) -> None:
        """Wait for a job that is certain to end."""
        if known.ends:
            self._check_end(known, self._kit.end(known.job).exit_code)

    def ask(self, several: list[ModelJob]) -> None:
        """Check the statuses of jobs, queried at once."""
        statuses = self._kit.backend.status([known.job for known in several])
        assert len(statuses) == len(several)
        for known, status in zip(several, statuses, strict=True):
            if status.state.is_terminal:
                self._check_end(known, status.exit_code)
            else:
                assert known.end is None, f"{known} had ended and is {status}"
                assert status.exit_code is None
                assert status.state in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)

    def read(self, known: ModelJob) -> None:
        """Check the lines of a job: none, or ``ready``."""
        if self._logs:
            assert list(self._kit.backend.logs(known.job)) in ([], ["ready"])

    def count(self) -> None:
        """Check that all jobs that have not ended are listed, and no unknown ones."""
        listed = [job.id for job in self._kit.backend.list(self._kit.run_id)]
        assert len(set(listed)) == len(listed)
        assert set(listed) <= {known.job.id for known in self.jobs}
        assert {known.job.id for known in self.jobs if not known.ends} <= set(listed)

    def clean_up(self) -> None:
        """Clean the run up, and check that its jobs are unknown or ended."""
        self._kit.backend.cleanup(self._kit.run_id)
        assert list(self._kit.backend.list(self._kit.run_id)) == []
        for known in self.jobs:
            try:
                (status,) = self._kit.backend.status([known.job])
            except UnknownJobError:
                continue
            assert status.state.is_terminal, f"{known} outlived its run: {status}"
        self.jobs.clear()

    def _check_end(self, known: ModelJob, code: int | None) -> None:
        assert known.ends, f"{known} ended with {code}, and nobody told it to"
        assert code in known.codes, f"{known} ended with {code}"
        assert known.end in (None, code), f"{known} ended with {code} now"
        known.end = code


class BackendConformance(
    Lifecycle,
    Stops,
    Delivery,
    Output,
    Groups,
    Options,
    Streams,
    Witnessed,
    CoreApi,
    Faults,
    Scale,
    AnyOrder,
    Platform,
):
    """Tests of the contract of :class:`fiber.abc.Backend`.

    Subclass it with one fixture::

        class TestMine(BackendConformance):
            @pytest.fixture
            def backend(self, context):
                backend = MyBackend(context)
                yield backend
                backend.close()

    Tests of undeclared capabilities are skipped, after a check that their use raises CapabilityError.
    A test can only be overridden by one marked ``xfail`` with a reason. More is
    checked where the subclass gives the optional fixtures ``witness``, ``settings``, ``unreachable``,
    ``reopen``, ``volume`` and ``image_context``. While a backend is being written, the attribute
    ``levels`` limits the levels that are run.
    """
