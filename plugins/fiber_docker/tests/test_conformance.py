"""Conformance of the Docker backend and its plugin."""

import contextlib
import itertools

import attrs
import pytest
import requests
from docker.errors import NotFound

from fiber.model import Volume
from fiber.testing import BackendConformance, HostWitness, PluginConformance
from fiber_docker.backend import DockerBackend
from fiber_docker.config import DockerConfig


class DockerWitness(HostWitness):
    """Witness of processes in containers of this host, and of each request of the SDK."""

    def __init__(self, backend, engine, monkeypatch):
        self._backend = backend
        self._engine = engine
        self._made = itertools.count()
        self._last = -1
        send = requests.Session.send

        def counted(*words, **more):
            self._last = next(self._made)
            return send(*words, **more)

        monkeypatch.setattr(requests.Session, "send", counted)

    def calls(self):
        return self._last + 1

    def suspend(self, job):
        self._engine.pause(job.id)

    def go_away(self):
        self._engine.daemon.stop()

    def come_back(self):
        self._engine.daemon.start()

    def cut_events(self):
        self._backend._watches.cut()


@pytest.mark.timeout(300)
class TestDockerBackend(BackendConformance):
    python = "python3"
    # a container takes a while on a machine that is busy with other tests
    patience = 60.0
    many = 16

    @pytest.fixture
    def engine(self, engine, request):
        takes_it_away = "test_a_platform_that_cannot_be_asked_for_a_while_is_waited_for"
        if request.function.__name__ == takes_it_away:
            engine = request.getfixturevalue("own_engine")
        self.image = engine.image
        return engine

    @pytest.fixture
    def backend(self, reopen, context):
        with contextlib.closing(reopen(context)) as backend:
            yield backend

    @pytest.fixture
    def config(self, engine):
        return DockerConfig(host=engine.url, pull="never")

    @pytest.fixture
    def reopen(self):
        return DockerBackend

    @pytest.fixture
    def unreachable(self, context):
        config = DockerConfig(host="unix:///nowhere/docker.sock")
        with contextlib.closing(DockerBackend(attrs.evolve(context, config=config))) as backend:
            yield backend

    @pytest.fixture
    def settings(self, engine):
        return {"DOCKER_HOST": engine.url, "FIBER_IMAGE": engine.image}

    @pytest.fixture
    def witness(self, backend, engine, monkeypatch):
        return DockerWitness(backend, engine, monkeypatch)

    @pytest.fixture
    def volume(self, run_id):
        return Volume(source=f"kit-{run_id}", path="/persistent")

    @pytest.fixture
    def image_context(self, engine, tmp_path):
        folder = tmp_path / "built"
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM {engine.image}\nCOPY word /word\n")
        (folder / "word").write_text("built\n")
        return str(folder)

    @pytest.fixture(autouse=True)
    def _engine(self, engine, run_id):
        self._asked = engine
        yield
        # only now is no container left that has it
        with contextlib.closing(engine.docker()) as client, contextlib.suppress(NotFound):
            client.api.remove_volume(f"kit-{run_id}", force=True)

    def survivors(self, run_id):
        return self._asked.containers(run_id)


class TestDockerPlugin(PluginConformance):
    module = "fiber_docker.plugin"
    sdks = ("docker", "requests", "urllib3", "fiber_docker.backend")
