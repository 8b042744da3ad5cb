"""Jobs on a real engine: what they ask for, and no more."""

import contextlib
import json
import socket
import threading
import time

import pytest

from fiber.backend_parts.liveness import Owner
from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError
from fiber.model import (
    BackendContext,
    JobSpec,
    JobState,
    Reason,
    ReasonKind,
    ResourceRequest,
    Timing,
    Volume,
)
from fiber.testing import programs
from fiber_docker.backend import DockerBackend
from fiber_docker.config import DockerConfig
from fiber_docker.watch import Watch


def output_of(answer):
    status, lines = answer
    assert status.state is JobState.SUCCEEDED, (status, lines)
    return lines


def accept(listener):
    connection, _ = listener.accept()
    connection.close()


@pytest.fixture
def sleeper(engine, run_id):
    """A job that goes on."""
    return JobSpec(run_id=run_id, name="n", argv=("sleep", "600"), image=engine.image)


class TestSettings:
    def test_user_folder_shared_memory_and_names_of_hosts_are_as_set(self, open_backend, run):
        backend = open_backend(
            user="1000:1000", workdir="/tmp", shm_size=32, extra_hosts=("master:10.9.8.7",)
        )
        size = "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize >> 20)"

        user, folder, memory, *hosts = output_of(
            run(backend, f'id -u; pwd; python3 -c "{size}"; cat /etc/hosts')
        )

        assert (user, folder, memory) == ("1000", "/tmp", "32")
        assert any(line.split() == ["10.9.8.7", "master"] for line in hosts)

    def test_another_user_can_end_with_any_code(self, open_backend, run):
        status, _ = run(open_backend(user="1000:1000"), "exit 137")

        assert status.reason == Reason(ReasonKind.EXIT, 137)

    def test_volumes_by_path_are_mounted_and_can_be_read_only(self, open_backend, run, tmp_path):
        (tmp_path / "a").write_text("from the host\n")
        volumes = (Volume(source=str(tmp_path), path="/data", read_only=True),)

        lines = output_of(
            run(
                open_backend(), "cat /data/a; touch /data/b 2>/dev/null || echo no", volumes=volumes
            )
        )

        assert lines == ["from the host", "no"]

    def test_a_missing_folder_is_refused(self, open_backend, run):
        volumes = (Volume(source="/no/such/folder", path="/data"),)

        with pytest.raises(SubmitError, match="/no/such/folder"):
            run(open_backend(), "true", volumes=volumes)

    def test_labels_are_on_the_container(self, open_backend, engine, sleeper):
        backend = open_backend(labels=("team=x",))
        job = backend.submit(sleeper)

        with contextlib.closing(engine.docker()) as client:
            labels = client.api.inspect_container(job.id)["Config"]["Labels"]

        assert (labels["team"], labels["fiber.name"]) == ("x", "n")

    @pytest.mark.parametrize(
        "shared,entry,count",
        [("programs", None, 1), ("programs", "x:y", 0), ("none", None, 0), ("all", "x:y", 1)],
    )
    def test_nothing_is_mounted_unasked_but_the_engine_for_programs(
        self, open_backend, engine, run_id, shared, entry, count
    ):
        backend = open_backend(share_engine=shared)
        argv = ("python3", "-c", "import signal; signal.pause()")
        job = backend.submit(
            JobSpec(run_id=run_id, name="n", argv=argv, image=engine.image, entry=entry)
        )

        with contextlib.closing(engine.docker()) as client:
            mounts = client.api.inspect_container(job.id)["Mounts"]
        assert [mount["Destination"] for mount in mounts] == ["/var/run/docker.sock"] * count


class TestNetwork:
    def test_jobs_of_a_user_network_reach_its_gateway(self, open_backend, engine, run):
        with contextlib.closing(engine.docker()) as client:
            network = client.networks.create(engine.named("user-net"))
            try:
                backend = open_backend(network=network.name)
                (gateway,) = backend._facts.gateways
                with socket.create_server((gateway, 0)) as listener:
                    thread = threading.Thread(target=accept, args=(listener,))
                    thread.start()
                    port = listener.getsockname()[1]
                    code = f"import socket; socket.create_connection(('{gateway}', {port}), 20)"
                    output_of(run(backend, f'python3 -c "{code}"'))
                    thread.join()
                backend.cleanup(backend._context.run_id)
            finally:
                network.remove()

    def test_a_missing_network_is_named(self, open_backend, run):
        with pytest.raises(BackendError, match=r"no-such-net.*docker network ls"):
            run(open_backend(network="no-such-net"), "true")


class TestFailures:
    @pytest.mark.parametrize(
        "image, words",
        [(None, "FIBER_IMAGE"), ("no-such-image", r"'no-such-image'.*docker pull no-such-image")],
    )
    def test_a_missing_image_is_an_error_that_says_what_to_do(
        self, open_backend, run, image, words
    ):
        with pytest.raises(SubmitError, match=words):
            run(open_backend(), "true", image=image)

    def test_an_image_that_cannot_be_pulled_is_reported_with_the_engines_message(
        self, open_backend, run
    ):
        # a port where nobody listens, on the engine's own loopback
        with pytest.raises(SubmitError, match=r"127\.0\.0\.1:9/x.*cannot be pulled.*refused"):
            run(open_backend(pull="missing"), "true", image="127.0.0.1:9/x:1")

    def test_a_process_in_an_image_without_its_python_says_so(self, open_backend, run):
        status, _ = run(open_backend(python="python9"), "true", entry="x:y", private=b"x")

        assert status.reason == Reason(ReasonKind.START)
        assert "no Python called 'python9'" in status.message

    def test_a_program_needs_no_python(self, open_backend, run):
        status, lines = run(open_backend(python="python9"), "echo here; exit 3")

        assert (status.exit_code, lines) == (3, ["here"])

    def test_out_of_memory_is_reported_as_such(self, open_backend, run, engine, run_id):
        status, _ = run(
            open_backend(),
            "",
            argv=("python3", *programs.allocate(512)[1:]),
            resources=ResourceRequest(memory=128),
        )

        assert status.reason == Reason(ReasonKind.OOM)
        assert status.exit_code == -9

    def test_an_unknown_kind_of_device_is_refused(self, open_backend, run):
        with pytest.raises(Exception, match="'gizmo' devices"):
            run(open_backend(), "true", resources=ResourceRequest(devices={"gizmo": 1}))

    def test_a_missing_engine_is_named_within_seconds(self):
        config = DockerConfig(host="unix:///nowhere/docker.sock")
        backend = DockerBackend(BackendContext(config=config))
        since = time.monotonic()

        with pytest.raises(BackendUnavailableError, match=r"/nowhere/docker\.sock.*DOCKER_HOST"):
            backend.capacity()

        assert time.monotonic() - since < 20


def test_private_bytes_are_nowhere_in_the_engine(open_backend, run_id, engine):
    secret = "cafe" * 16
    backend = open_backend()
    argv = ("python3", *programs.sleep_forever()[1:])
    spec = JobSpec(run_id=run_id, name="n", argv=argv, image=engine.image, private=secret.encode())
    job = backend.submit(spec)
    for line in backend.logs(job, follow=True):
        if line == "ready":
            break

    with contextlib.closing(engine.docker()) as client:
        inspected = json.dumps(client.api.inspect_container(job.id))
        processes = json.dumps(client.api.top(job.id))
        changed = json.dumps(client.api.diff(job.id))
    assert "python3" in inspected
    for text in (inspected, processes, changed, repr(job), repr(backend)):
        assert secret not in text


def test_a_paused_container_is_suspended_and_runs_again(open_backend, run_id, engine, sleeper):
    backend = open_backend()
    job = backend.submit(sleeper)
    states = []
    events = backend.events(run_id)
    with contextlib.closing(engine.docker()) as client:
        for _, status in events:
            states.append(status.state)
            if states[-1] is JobState.RUNNING and JobState.SUSPENDED not in states:
                engine.pause(job.id)
            elif status.state is JobState.SUSPENDED:
                client.api.unpause(job.id)
            elif status.state is JobState.RUNNING:
                break

    assert states == [JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.RUNNING]


def test_a_job_whose_container_is_gone_has_ended_before_its_event_comes(
    open_backend, run_id, engine, sleeper, monkeypatch
):
    may_handle, handle = threading.Event(), Watch._handle_event

    def late(watch, event):
        # only what tells of its end: the engine attaches to it before it starts
        assert event["Action"] not in {"kill", "die", "destroy"} or may_handle.wait(60)
        handle(watch, event)

    monkeypatch.setattr(Watch, "_handle_event", late)
    backend = open_backend(timing=Timing.at(0.1))
    job = backend.submit(sleeper)
    with contextlib.closing(backend.events(run_id)) as events:
        assert any(status.state is JobState.RUNNING for _, status in events)
    with contextlib.closing(engine.docker()) as client:
        client.api.remove_container(job.id, force=True)
    (status,) = backend.status([job])
    may_handle.set()
    assert status.state is JobState.FAILED


@pytest.fixture
def leave(engine):
    """Makes a container as a master does that was killed."""
    from fiber_docker import backend as module

    def leave(run_id, **labels):
        labels = {
            "fiber.run": run_id,
            "fiber.owner": module._owner(),
            "fiber.detached": "0",
            **{f"fiber.{key}": value for key, value in labels.items()},
        }
        with contextlib.closing(engine.docker()) as client:
            client.api.create_container(engine.image, ["true"], labels=labels)

    return leave


def test_orphans_of_a_killed_master_are_removed_by_the_next_run(open_backend, run, engine, leave):
    # a process of this host that is no more
    leave("0badcafe", master=Owner.current()._replace(pid=4194304).encode())

    output_of(run(open_backend(), "true"))

    assert engine.containers("0badcafe") == []


def test_containers_of_a_master_in_another_container_stay_while_that_runs(
    open_backend, run, engine, leave
):
    # its hostname is ours, and its number is nobody's here
    master = Owner.current()
    master = master._replace(place=f"{master.host}/another/1/1", pid=4194304).encode()
    leave("0badcafe", master=master)
    with contextlib.closing(engine.docker()) as client:
        around = client.containers.run(engine.image, ["sleep", "600"], detach=True)
        leave("0badcaff", **{"master": master, "master-container": around.id})

        output_of(run(open_backend(), "true"))
        left = [len(engine.containers(run_id)) for run_id in ("0badcafe", "0badcaff")]
        around.kill()
        around.wait()
        output_of(run(open_backend(), "true"))

        assert left == [1, 1]
        # of the one nobody can tell, of the other one the engine does
        assert [len(engine.containers(run_id)) for run_id in ("0badcafe", "0badcaff")] == [1, 0]
        around.remove()
        (left,) = engine.listed("fiber.run=0badcafe")
        client.api.remove_container(left["Id"])
