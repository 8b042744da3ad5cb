"""A spec becomes the body of the engine's call, and its answers statuses, without an engine."""

import json

import attrs
import pytest

from fiber.backend_parts import first
from fiber.model import JobSpec, JobState, Reason, ReasonKind, ResourceRequest
from fiber_docker.config import DockerConfig
from fiber_docker.container import ContainerContext, container_spec, unique_name
from fiber_docker.orphans import MASTER_CONTAINER_LABEL
from fiber_docker.status import (
    created_at,
    exit_status,
    failed_to_start,
    from_inspect,
    from_list,
    job_of,
    killed_unseen,
    lost_with_engine,
)

CONTEXT = ContainerContext(image="img", master="host:1:2.0", owner="me")
DEFAULTS = DockerConfig()
SPEC = JobSpec(run_id="00000001", name="job", argv=("prog", "a b"))
EXIT, SIGNAL, START = ReasonKind.EXIT, ReasonKind.SIGNAL, ReasonKind.START


def made(config=DEFAULTS, context=CONTEXT, **fields):
    return container_spec(attrs.evolve(SPEC, **fields), config, context)


class TestSpec:
    @pytest.mark.parametrize(
        "entry, code, tail",
        [(None, first.text(), ["bond:5", "6", "prog", "a b"]), ("x:y", "", ["a b"])],
    )
    def test_private_bytes_go_to_the_standard_input_after_the_code_of_a_programs_first_process(
        self, entry, code, tail
    ):
        found = made(DockerConfig(python="/opt/python"), entry=entry, private=b"secret")

        assert found.stdin == code.encode() + b"secret"
        assert found.body["Entrypoint"] == ["/opt/python"]
        assert found.body["Cmd"][-len(tail) :] == tail
        assert "secret" not in json.dumps(found.body)
        assert "secret" not in repr(found)

    def test_a_process_has_the_grace_of_docker_stop_and_a_program_has_not(self):
        body = made(entry="x:y", private=b"abc").body
        assert f"FIBER_GRACE={body['StopTimeout']}" in body["Env"]
        assert body["StopTimeout"] == 10
        # the engine takes no less
        assert made(context=attrs.evolve(CONTEXT, stop=0.1)).body["StopTimeout"] == 1
        assert not any(one.startswith("FIBER_GRACE=") for one in made().body["Env"])

    def test_nothing_is_limited_or_mounted_unasked(self):
        host = made(resources=ResourceRequest(cpu=0.5, memory=128)).body["HostConfig"]
        assert host["NanoCpus"] == 500_000_000
        assert host["Memory"] == host["MemorySwap"] == 128 << 20

        optional = {"NanoCpus", "Memory", "ShmSize", "Mounts", "Binds", "CapDrop", "SecurityOpt"}
        assert not optional & made().body["HostConfig"].keys()
        # a snap of Docker starts nothing that may gain no privileges
        snap = made(context=attrs.evolve(CONTEXT, can_forbid_privileges=False), entry="x:y")
        assert optional & snap.body["HostConfig"].keys() == {"CapDrop"}

    def test_a_job_can_be_found_by_its_labels(self):
        labels = made(DockerConfig(labels=("team=x=y",)), labels={"process": "p"}).body["Labels"]

        job = job_of("docker", "fiber-x", labels, 5.0)
        assert (job.id, job.name, job.run_id) == ("fiber-x", "job", "00000001")
        assert (job.argv, job.submitted) == (("prog", "a b"), 5.0)
        assert (labels["team"], labels["fiber.label.process"]) == ("x=y", "p")
        assert labels["fiber.detached"] == "0"
        # by which others know whether its program lives
        inside = attrs.evolve(CONTEXT, master_container="c0ffee")
        assert made(context=inside).body["Labels"][MASTER_CONTAINER_LABEL] == "c0ffee"
        assert MASTER_CONTAINER_LABEL not in labels
        # somebody else's break nothing
        job = job_of("docker", "x", {"fiber.argv": "no json"})
        assert (job.name, job.argv) == ("x", ())

    @pytest.mark.parametrize(
        "name", ["", "a", "-x-", 'My Job/№ 1: "q" ' + "x" * 90, "PoolWorker-1"]
    )
    def test_any_name_becomes_one_that_engines_take(self, name):
        found = unique_name("00000001", name)

        assert found.startswith("fiber-00000001-")
        assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
        assert len(found) < 64
        assert found != unique_name("00000001", name)


def inspected(status, **fields):
    return from_inspect({"State": {"Status": status, **fields}}, host="engine")


class TestStatus:
    @pytest.mark.parametrize(
        "code, report, reason, exit_code",
        [
            (0, "", Reason(EXIT, 0), 0),
            (7, "", Reason(EXIT, 7), 7),
            (137, "", Reason(SIGNAL, 9), -9),
            (137, "exit 137", Reason(EXIT, 137), 137),
            (137, "signal 9", Reason(SIGNAL, 9), -9),
            (143, "", Reason(SIGNAL, 15), -15),
            (255, "", Reason(EXIT, 255), 255),
            (127, "exit 127", Reason(EXIT, 127), 127),
            (127, "start no such file: 'x'", Reason(START), 127),
            (126, "start permission denied: 'x'", Reason(START), 126),
        ],
    )
    def test_the_first_process_tells_codes_from_signals(self, code, report, reason, exit_code):
        status = exit_status(code, report=report)

        assert (status.reason, status.exit_code) == (reason, exit_code)
        assert status.state is (JobState.SUCCEEDED if code == 0 else JobState.FAILED)

    def test_out_of_memory_is_the_reason_where_the_engine_proves_it_and_the_program_ended(self):
        assert exit_status(137, oom=True).reason == Reason(ReasonKind.OOM)
        assert exit_status(3, oom=True).reason == Reason(EXIT, 3)

    @pytest.mark.parametrize(
        "status, state",
        [
            ("created", JobState.PENDING),
            ("running", JobState.RUNNING),
            ("paused", JobState.SUSPENDED),
            ("who knows", JobState.UNKNOWN),
        ],
    )
    def test_one_that_has_not_ended_has_the_state_of_its_engine(self, status, state):
        assert inspected(status).state is state

    def test_one_that_ended_has_its_code_and_one_that_could_not_start_the_engines_words(self):
        ended = inspected("exited", ExitCode=3)
        assert (ended.exit_code, ended.host) == (3, "engine")

        failed = inspected("created", ExitCode=127, Error="exec: no such file")
        assert (failed.reason, failed.message) == (Reason(START), "exec: no such file")

    @pytest.mark.parametrize(
        "state, text, code",
        [
            ("exited", "Exited (3) 2 seconds ago", 3),
            # these have to be inspected
            ("exited", "Exited (137) 1 second ago", None),
            ("exited", "something else", None),
            ("created", "Created", None),
        ],
    )
    def test_a_plain_end_in_a_list_needs_no_second_question(self, state, text, code):
        status = from_list({"State": state, "Status": text})

        assert (status and status.exit_code) == code

    @pytest.mark.parametrize(
        "found, seconds",
        [
            (12, 12.0),
            ("1970-01-01T00:00:02.123456789Z", 2.123456789),
            ("1970-01-01T00:00:02Z", 2.0),
            ("", None),
            (None, None),
        ],
    )
    def test_times_are_read_as_engines_write_them(self, found, seconds):
        assert created_at(found) == seconds

    def test_a_container_that_was_killed_while_the_engine_was_away_was_lost_with_it(self):
        found = killed_unseen(inspected("exited", ExitCode=137))
        assert (found.exit_code, found.reason) == (-9, Reason(ReasonKind.NODE_LOST))
        assert "while the Docker engine was away" in found.message
        for own in ({"ExitCode": 3}, {"ExitCode": 0}, {"ExitCode": 137, "OOMKilled": True}):
            status = inspected("exited", **own)
            assert killed_unseen(status) == status
        # where that was before its start, nothing of it has run
        assert failed_to_start(lost_with_engine("it does not answer"))
        assert not failed_to_start(found)
