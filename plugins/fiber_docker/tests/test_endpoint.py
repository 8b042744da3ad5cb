"""Which engine is meant follows from settings, variables and files."""

import json
import socket

import attrs
import pytest

from fiber_docker import endpoint
from fiber_docker.config import DockerConfig


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint, "SOCKET", str(tmp_path / "docker.sock"))
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}


def visible(environ, **settings):
    return endpoint.is_visible(DockerConfig(**settings), environ)


def test_nothing_names_none(environ):
    assert not visible(environ)


@pytest.mark.parametrize("settings", [{"host": "tcp://a:1"}, {"context": "there"}])
def test_a_setting_names_one(environ, settings):
    assert visible(environ, **settings)


@pytest.mark.parametrize("name", ["DOCKER_HOST", "DOCKER_CONTEXT"])
def test_a_variable_names_one(environ, name):
    assert visible({**environ, name: "x"})


def test_the_usual_socket_is_one(environ, tmp_path):
    (tmp_path / "docker.sock").touch()

    assert visible(environ)


def test_the_current_context_is_one(environ, tmp_path):
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"currentContext": "there"}))

    assert visible(environ)


def test_podmans_socket_is_found(environ, tmp_path, monkeypatch):
    (tmp_path / "podman").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as podman:
        # a path of pytest's may be too long for a socket
        podman.bind("podman/podman.sock")
        assert endpoint.podman_socket(environ) == f"unix://{tmp_path}/podman/podman.sock"
        assert visible(environ)


def test_a_broken_file_of_contexts_is_the_sdks_to_complain_of(environ, tmp_path):
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text("{")

    assert not visible(environ)


def test_a_job_that_has_the_engine_finds_it_where_jobs_do():
    config = DockerConfig(host="tcp://far:1", address="10.0.0.1", network="n")

    effective = endpoint.effective_config(
        config, {endpoint.ENGINE_VARIABLE: endpoint.SHARED_ENGINE}
    )

    assert effective == attrs.evolve(config, host="unix:///var/run/docker.sock", address=None)


def test_outside_of_jobs_settings_are_unchanged():
    config = DockerConfig(host="tcp://far:1", address="10.0.0.1")

    assert endpoint.effective_config(config, {}) is config
    assert endpoint.has_no_engine({endpoint.ENGINE_VARIABLE: endpoint.NO_ENGINE})
    assert not endpoint.has_no_engine({})
