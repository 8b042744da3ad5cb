"""A spec becomes the body of the engine's call, without an engine."""

import json

import attrs
import pytest

from fiber.backend_parts import first
from fiber.model import JobSpec, ResourceRequest, Volume
from fiber_docker.config import DockerConfig
from fiber_docker.container import ContainerContext, container_spec, unique_name

CONTEXT = ContainerContext(image="img", master="host:1:2.0", owner="me")


def spec(**fields):
    return JobSpec(**{"run_id": "00000001", "name": "job", "argv": ("prog", "a b"), **fields})


def made(config=DockerConfig(), context=CONTEXT, **fields):  # noqa: B008 - frozen
    return container_spec(spec(**fields), config, context)


class TestProgram:
    def test_a_program_runs_under_a_first_process_that_needs_no_fiber(self):
        body = made().body

        assert body["Entrypoint"] == ["python3"]
        assert body["Cmd"][-4:] == ["bond:5", "-1", "prog", "a b"]
        assert made().stdin == first.text().encode()
        assert made().files

    def test_its_private_bytes_follow_on_the_standard_input(self):
        found = made(private=b"secret")

        assert found.stdin == first.text().encode() + b"secret"
        assert found.body["Cmd"][-4:-2] == ["bond:5", "6"]

    def test_a_process_of_fibers_is_the_first_itself_with_the_images_python(self):
        config = DockerConfig(python="/opt/python")
        found = made(config, argv=("any", "-m", "fiber._agent.job"), entry="x:y", private=b"abc")

        assert found.body["Entrypoint"] == ["/opt/python"]
        assert found.body["Cmd"] == ["-m", "fiber._agent.job"]
        assert "FIBER_BOOTSTRAP=stdin:3" in found.body["Env"]
        assert found.stdin == b"abc"
        assert found.body["HostConfig"]["AutoRemove"] is True

    def test_a_process_has_the_grace_of_docker_stop_and_a_program_has_not(self):
        body = made(entry="x:y", private=b"abc").body
        assert f"FIBER_GRACE={body['StopTimeout']}" in body["Env"]
        assert body["StopTimeout"] == 10
        # the engine takes no less
        assert made(context=attrs.evolve(CONTEXT, stop=0.1)).body["StopTimeout"] == 1
        assert not any(one.startswith("FIBER_GRACE=") for one in made().body["Env"])

    def test_without_python_a_program_is_the_first_process(self):
        body = container_spec(spec(), DockerConfig(), CONTEXT, wrapped=False).body

        assert body["Entrypoint"] + body["Cmd"] == ["prog", "a b"]
        assert body["OpenStdin"] is False

    @pytest.mark.parametrize("fields", [{}, {"entry": "x:y"}])
    def test_private_bytes_are_nowhere_in_the_call(self, fields):
        found = made(private=b"the secret", **fields)

        assert "the secret" not in json.dumps(found.body)
        assert "the secret" not in repr(found)

    def test_variables_are_set_and_taken_away(self):
        env = made(env={"A": "1=2", "B": ""}, unset_env=frozenset({"C", "A"})).body["Env"]

        assert env == ["A=1=2", "B=", "_FIBER_DOCKER=alone", "C"]


class TestPlace:
    def test_limits_are_the_engines(self):
        host = made(resources=ResourceRequest(cpu=0.5, memory=128)).body["HostConfig"]

        assert host["NanoCpus"] == 500_000_000
        assert host["Memory"] == host["MemorySwap"] == 128 << 20

    def test_nothing_is_limited_unasked(self):
        assert not {"NanoCpus", "Memory", "ShmSize"} & made().body["HostConfig"].keys()

    def test_nothing_is_mounted_unasked(self):
        assert not {"Mounts", "Binds"} & made().body["HostConfig"].keys()

    def test_volumes_are_mounted_by_name_and_by_path(self):
        config = DockerConfig(volumes=("data:/data:ro",))
        volumes = (Volume(source="/srv/x", path="/x"),)

        mounts = made(config, volumes=volumes).body["HostConfig"]["Mounts"]

        assert mounts == [
            {"Type": "volume", "Source": "data", "Target": "/data", "ReadOnly": True},
            {"Type": "bind", "Source": "/srv/x", "Target": "/x"},
        ]

    def test_settings_are_passed_on(self):
        config = DockerConfig(
            user="1000:1000",
            workdir="/work",
            shm_size=256,
            extra_hosts=("a:10.0.0.1",),
            labels=("team=x=y",),
        )
        context = attrs.evolve(CONTEXT, network="net", hosts={"b": "host-gateway"})

        body = made(config, context).body

        assert (body["User"], body["WorkingDir"]) == ("1000:1000", "/work")
        host = body["HostConfig"]
        assert host["ShmSize"] == 256 << 20
        assert host["ExtraHosts"] == ["a:10.0.0.1", "b:host-gateway"]
        assert host["NetworkMode"] == "net"
        assert body["Labels"]["team"] == "x=y"

    def test_a_job_can_be_found_by_its_labels(self):
        labels = made(labels={"process": "p"}).body["Labels"]

        assert labels["fiber.run"] == "00000001"
        assert json.loads(labels["fiber.argv"]) == ["prog", "a b"]
        assert labels["fiber.label.process"] == "p"
        assert labels["fiber.detached"] == "0"

    def test_the_engines_socket_is_given_only_when_asked_for(self):
        context = attrs.evolve(CONTEXT, engine_socket="/var/run/docker.sock")

        (mount,) = made(context=context).body["HostConfig"]["Mounts"]

        assert mount["Source"] == mount["Target"] == "/var/run/docker.sock"
        assert "_FIBER_DOCKER=shared" in made(context=context).body["Env"]


@pytest.mark.parametrize("name", ["", "a", "-x-", 'My Job/№ 1: "q" ' + "x" * 90, "PoolWorker-1"])
def test_any_name_becomes_one_that_engines_take(name):
    found = unique_name("00000001", name)

    assert found.startswith("fiber-00000001-")
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
    assert len(found) < 64
    assert found != unique_name("00000001", name)
