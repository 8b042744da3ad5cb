"""Statuses from the engine's answers, without an engine."""

import pytest

from fiber.model import JobState, Reason, ReasonKind
from fiber_docker.status import (
    ContainerExit,
    created_at,
    failed_to_start,
    from_inspect,
    from_list,
    job_of,
    killed_unseen,
    lost_with_engine,
    with_log_tail,
)


def inspected(status, **fields):
    return {"State": {"Status": status, **fields}}


class TestEnd:
    @pytest.mark.parametrize(
        "code,report,reason,exit_code",
        [
            (0, "", Reason(ReasonKind.EXIT, 0), 0),
            (7, "", Reason(ReasonKind.EXIT, 7), 7),
            (137, "", Reason(ReasonKind.SIGNAL, 9), -9),
            (137, "exit 137", Reason(ReasonKind.EXIT, 137), 137),
            (137, "signal 9", Reason(ReasonKind.SIGNAL, 9), -9),
            (143, "", Reason(ReasonKind.SIGNAL, 15), -15),
            (255, "", Reason(ReasonKind.EXIT, 255), 255),
            (127, "exit 127", Reason(ReasonKind.EXIT, 127), 127),
            (127, "start no such file: 'x'", Reason(ReasonKind.START), 127),
        ],
    )
    def test_the_first_process_tells_codes_from_signals(self, code, report, reason, exit_code):
        status = ContainerExit(code=code, report=report).status()

        assert (status.reason, status.exit_code) == (reason, exit_code)
        assert status.state is (JobState.SUCCEEDED if code == 0 else JobState.FAILED)

    def test_out_of_memory_is_the_reason_where_the_engine_proves_it(self):
        assert ContainerExit(code=137, oom=True).status().reason == Reason(ReasonKind.OOM)

    def test_out_of_memory_is_not_the_reason_where_the_program_went_on(self):
        assert ContainerExit(code=3, oom=True).status().reason == Reason(ReasonKind.EXIT, 3)


class TestInspect:
    def test_a_created_container_is_pending(self):
        assert from_inspect(inspected("created")).state is JobState.PENDING

    def test_one_that_could_not_be_started_has_failed_with_the_engines_words(self):
        status = from_inspect(inspected("created", ExitCode=127, Error="exec: no such file"))

        assert status.reason == Reason(ReasonKind.START)
        assert status.message == "exec: no such file"

    @pytest.mark.parametrize(
        "status,state",
        [
            ("running", JobState.RUNNING),
            ("paused", JobState.SUSPENDED),
            ("who knows", JobState.UNKNOWN),
        ],
    )
    def test_one_that_lives_has_the_state_of_its_engine(self, status, state):
        assert from_inspect(inspected(status)).state is state

    def test_one_that_ended_has_its_code(self):
        status = from_inspect(inspected("exited", ExitCode=3), host="engine")

        assert (status.exit_code, status.host) == (3, "engine")


class TestList:
    def test_a_plain_end_needs_no_second_question(self):
        status = from_list({"State": "exited", "Status": "Exited (3) 2 seconds ago"})

        assert status is not None
        assert status.exit_code == 3

    @pytest.mark.parametrize("text", ["Exited (137) 1 second ago", "something else"])
    def test_an_end_that_may_mean_several_things_does(self, text):
        assert from_list({"State": "exited", "Status": text}) is None

    def test_a_created_one_does_as_well(self):
        assert from_list({"State": "created", "Status": "Created"}) is None


def test_a_job_is_made_of_its_labels():
    labels = {"fiber.name": "n", "fiber.run": "00000001", "fiber.argv": '["a", "b c"]'}

    job = job_of("docker", "fiber-x", labels, 5.0)

    assert (job.id, job.name, job.run_id) == ("fiber-x", "n", "00000001")
    assert (job.argv, job.submitted) == (("a", "b c"), 5.0)


def test_labels_of_somebody_else_break_nothing():
    job = job_of("docker", "x", {"fiber.argv": "no json"})

    assert (job.name, job.argv) == ("x", ())


def test_the_log_tail_is_in_the_status():
    status = with_log_tail(ContainerExit(code=1).status(), ("a", "b"))

    assert status.processes[0].log_tail == ("a", "b")
    assert status.processes[0].exit_code == 1


@pytest.mark.parametrize(
    "found,seconds",
    [
        (12, 12.0),
        ("1970-01-01T00:00:02.123456789Z", 2.123456),
        ("1970-01-01T00:00:02Z", 2.0),
        ("", None),
        (None, None),
    ],
)
def test_times_are_read_as_engines_write_them(found, seconds):
    assert created_at(found) == seconds


def test_a_container_that_was_killed_while_the_engine_was_away_was_lost_with_it():
    killed = from_inspect(inspected("exited", ExitCode=137))
    found = killed_unseen(killed)
    assert (found.exit_code, found.reason) == (-9, Reason(ReasonKind.NODE_LOST))
    assert "while the Docker engine was away" in found.message
    for own in ({"ExitCode": 3}, {"ExitCode": 0}, {"ExitCode": 137, "OOMKilled": True}):
        status = from_inspect(inspected("exited", **own))
        assert killed_unseen(status) == status


def test_one_that_was_not_started_because_its_engine_went_away_failed_to_start():
    assert failed_to_start(lost_with_engine("it does not answer"))
    assert not failed_to_start(killed_unseen(from_inspect(inspected("exited", ExitCode=137))))
