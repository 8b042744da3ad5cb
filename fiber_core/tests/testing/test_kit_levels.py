"""The upper levels of the kit find backends that do not conform, each in one way."""

import signal

import pytest

from fiber.model import JobState, JobStatus, Reason, ReasonKind
from fiber.testing import BackendConformance, FakeBackend, HostWitness, Witness
from fiber.testing.fakes import CAPABILITIES
from fiber.testing.kit.base import level_of
from fiber.testing.kit.driver import Driver

RUN = "0123abcd"
_DEAD = JobStatus(
    state=JobState.FAILED,
    reason=Reason(ReasonKind.SIGNAL, signal.SIGKILL),
    exit_code=-signal.SIGKILL,
)


class Platform(HostWitness):
    def __init__(self, backend):
        self._platform = backend.platform

    def calls(self):
        return self._platform.calls

    def cut_events(self):
        self._platform.cut_events()


class SaysThatItIsDead(FakeBackend):
    def kill(self, job):
        self.platform._publish(job, _DEAD)


class AsksForOneAfterTheOther(FakeBackend):
    def status(self, jobs):
        return [super(AsksForOneAfterTheOther, self).status([job])[0] for job in jobs]


class IsLostWithoutItsStream(FakeBackend):
    def events(self, run_id):
        for _, job, status in self.platform.events(run_id, self._closed):
            yield job, status


class ListsNothing(FakeBackend):
    def list(self, run_id=None):
        return ()


class ForgetsTheEnd(FakeBackend):
    def status(self, jobs):
        running = JobStatus(state=JobState.RUNNING)
        return [running if s.state is JobState.FAILED else s for s in super().status(jobs)]


def run(backend, test, **arguments):
    class Mine(BackendConformance):
        capabilities = CAPABILITIES
        patience = 2.0
        many = 6
        # it ends with the first order that goes wrong
        machine_examples = 200
        machine_steps = 50

    kit = Driver(backend, RUN, python=Mine.python, image=None, patience=Mine.patience)
    try:
        getattr(Mine(), test)(kit, **arguments)
        kit.close()
    finally:
        FakeBackend.cleanup(backend, RUN)
        FakeBackend.close(backend)
        if kit._stream is not None:
            kit._stream.join(10)


def ignore(*_):
    """Measurement that is discarded."""


@pytest.mark.parametrize(
    "wrong, test, measures",
    [
        (SaysThatItIsDead, "test_a_killed_job_is_gone_with_all_its_processes", False),
        (IsLostWithoutItsStream, "test_events_go_on_after_their_stream_was_cut", True),
        (AsksForOneAfterTheOther, "test_one_question_asks_for_many_statuses", True),
    ],
)
def test_the_kit_finds_what_a_witness_sees(wrong, test, measures):
    backend = wrong()
    arguments = {"measure": ignore} if measures else {}

    with pytest.raises(AssertionError):
        run(backend, test, witness=Platform(backend), **arguments)


@pytest.mark.parametrize("wrong", [ListsNothing, ForgetsTheEnd])
def test_the_kit_finds_an_order_of_calls_that_goes_wrong(wrong):
    # several faults at once are a group of exceptions
    with pytest.raises(Exception, match=r"ListsNothing|ModelJob|assert|Hypothesis"):
        run(wrong(), "test_any_order_of_calls_tells_the_truth")


@pytest.mark.parametrize("witness", [None, Witness()])
def test_what_cannot_be_asked_is_skipped(witness):
    with pytest.raises(pytest.skip.Exception, match=r"no fixture 'witness'|cannot be asked for"):
        run(FakeBackend(), "test_a_job_that_is_told_to_run_does", witness=witness)


def test_each_test_has_the_level_of_the_part_of_the_kit_that_it_is_from():
    class Mine(BackendConformance):
        @pytest.mark.xfail(reason="overridden, and still of its level")
        def test_any_order_of_calls_tells_the_truth(self, kit): ...

        def test_of_its_own(self): ...

    assert level_of(Mine, "test_exit_codes_are_exact") == 2
    assert level_of(Mine, "test_a_program_works") == 3
    assert level_of(Mine, "test_a_killed_worker_loses_no_task") == 4
    assert level_of(Mine, "test_many_jobs_run_at_once") == 5
    assert level_of(Mine, "test_any_order_of_calls_tells_the_truth") == 6
    assert level_of(Mine, "test_of_its_own") is None
