"""The conformance kit finds backends that do not conform, each in one way."""

import contextlib
import signal
import socket

import attrs
import pytest

from fake_witness import FakeWitness
from fiber.abc import Backend
from fiber.exceptions import ResourceError
from fiber.model import (
    BackendContext,
    Capabilities,
    JobState,
    JobStatus,
    Reason,
    ReasonKind,
)
from fiber.testing import (
    BackendConformance,
    FakeBackend,
    FakePlatform,
    FakeProvider,
    HostWitness,
    Witness,
)
from fiber.testing.fakes import CAPABILITIES
from fiber.testing.kit.platform import Driver

RUN = "0123abcd"
_DEAD = JobStatus(
    state=JobState.FAILED,
    reason=Reason(ReasonKind.SIGNAL, signal.SIGKILL),
    exit_code=-signal.SIGKILL,
)


def run(backend: Backend, test: str, *, attributes=(), **arguments):
    """Run a test of the kit on a backend of all that the fake can."""

    class Mine(BackendConformance):
        locals().update(attributes)
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


class TestOverriding:
    def test_a_test_is_overridden_with_a_reason_only(self):
        with pytest.raises(TypeError, match=r"Mine\.test_close_may_come_twice overrides .*xfail"):

            class Mine(BackendConformance):
                def test_close_may_come_twice(self, kit): ...

    def test_a_test_cannot_be_taken_away(self):
        with pytest.raises(TypeError, match="test_close_may_come_twice"):

            class Mine(BackendConformance):
                test_close_may_come_twice = None

    def test_a_reason_is_formatted_as_text(self):
        with pytest.raises(TypeError):

            class Wordless(BackendConformance):
                @pytest.mark.xfail
                def test_close_may_come_twice(self, kit): ...

        class Mine(BackendConformance):
            @pytest.mark.xfail(reason="the platform has only one close")
            def test_close_may_come_twice(self, kit): ...

            def test_something_of_its_own(self): ...

        assert Mine


# -- backends that do not conform, each in one way


class LosesExitCodes(FakeBackend):
    def events(self, run_id):
        for job, status in super().events(run_id):
            ended = status.state is JobState.FAILED
            reason = Reason(ReasonKind.EXIT, 1)
            yield job, attrs.evolve(status, exit_code=1, reason=reason) if ended else status


class TellsTheEndTwice(FakeBackend):
    def events(self, run_id):
        for job, status in super().events(run_id):
            yield job, status
            if status.state.is_terminal:
                yield job, status


class KillsAsItTerminates(FakeBackend):
    def kill(self, job):
        self.terminate(job)


class LosesLines(FakeBackend):
    def logs(self, job, *, tail=None, follow=False):
        for number, line in enumerate(super().logs(job, tail=tail, follow=follow)):
            if number != 7_000:
                yield line


class WaitsForLostHosts(FakeBackend):
    """The end of a job is never reported where its host does not confirm it."""

    def events(self, run_id):
        for job, status in super().events(run_id):
            if status.reason != Reason(ReasonKind.NODE_LOST):
                yield job, status


class TellsSecrets(FakeBackend):
    def submit(self, spec):
        env = {**spec.env, "SECRET": (spec.private or b"").decode()}
        return super().submit(attrs.evolve(spec, env=env))


class ListsNothing(FakeBackend):
    def list(self, run_id=None):
        return ()


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


class ForgetsTheEnd(FakeBackend):
    def status(self, jobs):
        running = JobStatus(state=JobState.RUNNING)
        return [running if s.state is JobState.FAILED else s for s in super().status(jobs)]


@pytest.mark.parametrize(
    "wrong, test, arguments",
    [
        (LosesExitCodes, "test_exit_codes_are_exact", {"code": 7}),
        (LosesExitCodes, "test_signals_are_exact", {"number": 9}),
        (TellsTheEndTwice, "test_a_job_that_ends_well_succeeds", {}),
        (KillsAsItTerminates, "test_kill_gives_a_job_no_chance", {}),
        (LosesLines, "test_ten_thousand_lines_come_complete_and_in_order", {}),
        (LosesLines, "test_following_ends_with_the_job", {}),
        (ListsNothing, "test_jobs_of_a_run_are_listed", {}),
    ],
)
def test_the_kit_finds_what_is_wrong(wrong, test, arguments):
    # a failed pytest.raises() is no AssertionError
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run(wrong(), test, **arguments)


@pytest.mark.parametrize(
    "wrong, test, arguments",
    [
        (SaysThatItIsDead, "test_a_killed_job_is_gone_with_all_its_processes", {}),
        (
            IsLostWithoutItsStream,
            "test_events_go_on_after_their_stream_was_cut",
            {"measure": ignore},
        ),
        (AsksForOneAfterTheOther, "test_one_question_asks_for_many_statuses", {"measure": ignore}),
        (
            WaitsForLostHosts,
            "test_a_job_that_is_ended_before_it_is_up_ends_though_its_host_is_lost",
            {"measure": ignore, "how": "kill"},
        ),
    ],
)
def test_the_kit_finds_what_a_witness_sees(wrong, test, arguments):
    backend = wrong()

    with pytest.raises(AssertionError):
        run(backend, test, witness=FakeWitness(backend.platform), **arguments)


class SeesNobody(HostWitness):
    def is_running(self, job):
        return False


class KillsNobody(HostWitness):
    def kill(self, job):
        pass


@pytest.mark.parametrize(
    "witness, told",
    [
        (
            SeesNobody(),
            r"no process of kit-\w+ within 2 s.*RUNNING means that the program was started",
        ),
        (KillsNobody(), r"KillsNobody\.kill\(\) ended nothing of kit-\w+, which still runs"),
    ],
)
def test_a_witness_that_has_killed_nobody_is_told_apart_from_a_backend_that_saw_no_death(
    witness, told
):
    test = "test_a_job_that_a_stranger_kills_is_noticed"

    with pytest.raises(AssertionError, match=told):
        run(FakeBackend(), test, witness=witness, measure=ignore)


def test_suspension_is_skipped_where_nobody_can_suspend():
    with pytest.raises(pytest.skip.Exception, match="nobody here can suspend a job of fake"):
        run(
            FakeBackend(),
            "test_a_stopped_job_is_suspended_and_not_dead",
            attributes={"notices_stops": False},
            witness=None,
        )


class OneDeviceAJob(FakeBackend):
    """Of its two devices each is on a host of its own."""

    def submit(self, spec):
        asked = spec.resources.devices.get("fake", 0)
        if asked > 1:
            msg = f"no host has {asked} devices"
            raise ResourceError(msg)
        return super().submit(spec)


def test_devices_of_one_job_and_of_the_platform_are_two_numbers():
    for test in (
        "test_devices_are_granted_and_come_back",
        "test_a_job_waits_for_devices_that_others_hold",
        "test_more_devices_than_there_are_is_an_error",
    ):
        providers = {"fake": FakeProvider()}
        platform = FakePlatform(FakeProvider().parse('["F-0", "F-1"]'))
        backend = OneDeviceAJob(BackendContext(providers=providers), platform)

        run(backend, test, attributes={"devices": {"fake": 2}, "devices_per_job": {"fake": 1}})


@pytest.mark.parametrize(
    "is_closed, told",
    [(False, "0 of 65536 bytes came back within 0.1 s"), (True, "ended after 0 of 65536 bytes")],
)
def test_how_much_a_stream_has_carried_is_told(is_closed, told):
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(theirs):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.settimeout(0.1)
        if is_closed:
            theirs.shutdown(socket.SHUT_WR)
        kit = type("Mine", (BackendConformance,), {"patience": 0.1})()

        with pytest.raises(AssertionError, match=told):
            kit._echoed(ours, bytes(1 << 17))


def test_the_kit_finds_a_secret_that_others_see(caplog):
    with pytest.raises(AssertionError, match="3: argv or environment has them"):
        run(
            TellsSecrets(),
            "test_private_bytes_arrive_and_are_seen_by_nobody_else",
            caplog=caplog,
            size=16,
        )


@pytest.mark.parametrize("wrong", [ListsNothing, ForgetsTheEnd])
def test_the_kit_finds_an_order_of_calls_that_goes_wrong(wrong):
    # several faults at once are a group of exceptions
    with pytest.raises(Exception, match=r"ListsNothing|ModelJob|assert|Hypothesis"):
        run(wrong(), "test_any_order_of_calls_tells_the_truth")


@pytest.mark.parametrize("witness", [None, Witness()])
def test_what_cannot_be_asked_is_skipped(witness):
    with pytest.raises(pytest.skip.Exception, match=r"no fixture 'witness'|cannot be asked for"):
        run(FakeBackend(), "test_a_job_that_is_told_to_run_does", witness=witness)


@pytest.mark.parametrize("fixture, capability", [("volume", "copy"), ("reopen", "detached")])
def test_a_declared_capability_must_be_proven(fixture, capability):
    class Mine(BackendConformance):
        capabilities = Capabilities(**{capability: True})

    with pytest.raises(
        pytest.fail.Exception, match=f"declares '{capability}'.*no fixture '{fixture}'"
    ):
        Mine()._not_given(FakeBackend(), fixture, capability)


def test_a_broken_stream_of_events_is_reported():
    class Breaks(FakeBackend):
        def events(self, run_id):
            raise ZeroDivisionError
            yield

    with pytest.raises(AssertionError, match="stream ended") as caught:
        run(Breaks(), "test_a_job_that_ends_well_succeeds")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
