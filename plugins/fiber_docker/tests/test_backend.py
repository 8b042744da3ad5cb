"""Jobs on a real engine: what they ask for, and no more; what it refuses; how they end."""

import contextlib
import json
import threading
from types import SimpleNamespace

import attrs
import pytest
from docker import APIClient

from fiber._agent.resources.nvidia import NvidiaProvider
from fiber.backend_parts.containers import user_name
from fiber.backend_parts.liveness import Owner
from fiber.exceptions import BackendError, BackendUnavailableError, ResourceError, SubmitError
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
from fiber_docker.client import Client
from fiber_docker.config import DockerConfig
from fiber_docker.watch import Watch


def output_of(answer):
    status, lines = answer
    assert status.state is JobState.SUCCEEDED, (status, lines)
    return lines


@pytest.fixture
def sleeper(engine, run_id):
    """A job that goes on."""
    return JobSpec(run_id=run_id, name="n", argv=("sleep", "600"), image=engine.image)


def test_user_folder_shared_memory_and_names_of_hosts_are_as_set(open_backend, run):
    backend = open_backend(
        user="1000:1000", workdir="/tmp", shm_size=32, extra_hosts=("master:10.9.8.7",)
    )
    size = "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize >> 20)"

    user, folder, memory, *hosts = output_of(
        run(backend, f'id -u; pwd; python3 -c "{size}"; cat /etc/hosts')
    )

    assert (user, folder, memory) == ("1000", "/tmp", "32")
    assert any(line.split() == ["10.9.8.7", "master"] for line in hosts)
    # also what a user that is not root writes of its end is read
    status, _ = run(backend, "exit 137")
    assert status.reason == Reason(ReasonKind.EXIT, 137)


def test_volumes_by_path_are_mounted_and_can_be_read_only(open_backend, run, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"{name} of the host\n")
    backend = open_backend(volumes=(f"{tmp_path}/a:/a:ro",))
    volumes = (Volume(source=f"{tmp_path}/b", path="/b"),)

    lines = output_of(
        run(backend, "cat /?/file; touch /b/new; touch /a/new 2>&- || echo no", volumes=volumes)
    )

    assert lines == ["a of the host", "b of the host", "no"]
    assert (tmp_path / "b" / "new").exists()


@pytest.mark.parametrize(
    "settings, entry, path",
    [
        ({}, None, None),
        ({"share_engine": "programs"}, None, "/there.sock"),
        ({"share_engine": "programs"}, "x:y", None),
        ({"share_engine": "all"}, "x:y", "/there.sock"),
    ],
)
def test_the_engine_is_given_to_nobody_unless_the_setting_differs(settings, entry, path):
    config = DockerConfig(host="unix:///there.sock", **settings)
    backend = DockerBackend(BackendContext(config=config))

    assert backend._socket_for(JobSpec(run_id="0", name="n", argv=("x",), entry=entry)) == path
    backend.close()


@pytest.mark.parametrize(
    "settings, fields, words",
    [
        ({}, {"volumes": (Volume(source="/no/such/folder", path="/data"),)}, "/no/such/folder"),
        ({"network": "no-such-net"}, {}, r"no-such-net.*docker network ls"),
        ({}, {"image": None}, "FIBER_IMAGE"),
        ({}, {"image": "no-such-image"}, r"'no-such-image'.*docker pull no-such-image"),
        # a port where nobody listens, on the engine's own loopback
        (
            {"pull": "missing"},
            {"image": "127.0.0.1:9/x:1"},
            r"127\.0\.0\.1:9/x.*cannot be pulled.*refused",
        ),
    ],
    ids=["folder", "network", "no image", "an image that is not pulled", "an image"],
)
def test_what_is_missing_is_named_with_what_to_do(open_backend, run, settings, fields, words):
    with pytest.raises(BackendError if "network" in settings else SubmitError, match=words):
        run(open_backend(**settings), "true", **fields)


@pytest.mark.parametrize("started, told", [("", "DOCKER_HOST"), ("alone", "--share-engine pro")])
def test_a_missing_engine_is_named(monkeypatch, started, told):
    monkeypatch.setenv("_FIBER_DOCKER", started)
    backend = DockerBackend(BackendContext(config=DockerConfig(host="unix:///nowhere/d.sock")))

    with pytest.raises(BackendUnavailableError, match=rf"/nowhere/d\.sock.*{told}"):
        backend.capacity()


@pytest.mark.parametrize("settings, variable", [({"context": "none"}, ""), ({}, "none")])
def test_an_unknown_context_is_an_error_and_not_the_default_engine(monkeypatch, settings, variable):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONTEXT", variable)
    backend = DockerBackend(BackendContext(config=DockerConfig(**settings)))

    with pytest.raises(BackendUnavailableError, match=r"no docker context 'none'; .* context ls"):
        backend.capacity()


@pytest.mark.parametrize(
    "url, warned", [("http://far:1", True), ("https://far:1", False), ("http://[::1]:1", False)]
)
def test_keys_that_go_to_an_engine_in_clear_are_warned_of(monkeypatch, caplog, url, warned):
    monkeypatch.setattr("docker.from_env", lambda **_: SimpleNamespace(api=APIClient(url, "1.41")))
    Client(DockerConfig(host="tcp://far:1")).api.close()
    assert ("tcp://far:1 is reached without TLS" in caplog.text) is warned


def test_an_engine_without_gpus_is_quoted(open_backend, run):
    backend = open_backend(providers={"gpu": NvidiaProvider()})

    told = r"(?s)could not select device driver \"nvidia\".*install the nvidia container toolkit"
    with pytest.raises(ResourceError, match=told):
        run(backend, "true", resources=ResourceRequest(devices={"gpu": 1}))


def test_a_program_needs_no_python_and_a_process_says_what_it_lacks(open_backend, run):
    backend = open_backend(python="python9")

    status, lines = run(backend, "echo here; exit 3")
    assert (status.exit_code, lines) == (3, ["here"])

    status, _ = run(backend, "true", entry="x:y", private=b"x")
    assert status.reason == Reason(ReasonKind.START)
    assert "no Python called 'python9'" in status.message


def test_out_of_memory_is_reported_as_such(open_backend, run):
    status, _ = run(
        open_backend(),
        "",
        argv=("python3", *programs.allocate(512)[1:]),
        resources=ResourceRequest(memory=128),
    )

    assert (status.reason, status.exit_code) == (Reason(ReasonKind.OOM), -9)


def test_private_bytes_are_nowhere_in_the_engine(open_backend, engine, sleeper):
    secret = "cafe" * 16
    backend = open_backend()
    argv = ("python3", *programs.sleep_forever()[1:])
    job = backend.submit(attrs.evolve(sleeper, argv=argv, private=secret.encode()))
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
    with contextlib.closing(engine.docker()) as client:
        for _, status in backend.events(run_id):
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


def test_orphans_are_removed_by_the_next_run_once_their_master_is_proven_dead(
    open_backend, run, engine
):
    # the first was a process of this host; of the others its hostname is ours, and its number nobody's
    dead = Owner.current()._replace(pid=4194304)
    elsewhere = dead._replace(place=f"{dead.host}/another/1/1")
    with contextlib.closing(engine.docker()) as client:
        around = client.containers.run(engine.image, ["sleep", "600"], detach=True)
        for run_id, master, more in (
            ("0badcafd", dead, {}),
            ("0badcafe", elsewhere, {}),
            ("0badcaff", elsewhere, {"fiber.master-container": around.id}),
        ):
            of_all = {"fiber.owner": user_name(), "fiber.detached": "0"}
            labels = {**of_all, "fiber.run": run_id, "fiber.master": master.encode(), **more}
            client.api.create_container(engine.image, ["true"], labels=labels)

        def left_by_the_next_run():
            output_of(run(open_backend(), "true"))
            return [len(engine.containers(f"0badcaf{last}")) for last in "def"]

        assert left_by_the_next_run() == [0, 1, 1]
        around.kill()
        around.wait()
        # of one nobody can tell, of the other the engine does
        assert left_by_the_next_run() == [0, 1, 0]
        around.remove()
        (left,) = engine.listed("fiber.run=0badcafe")
        client.api.remove_container(left["Id"])
