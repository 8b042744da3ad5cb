"""Every test of this distribution can have an engine of the tests' own, and backends and programs on it."""

import contextlib
import secrets
import sys
import types

import attrs
import pytest

from commands import ran
from dockerd import engine, own_engine
from fiber._agent import rundir
from fiber.model import BackendContext, JobSpec, Timing

__all__ = ["engine", "own_engine"]


@pytest.fixture
def run_id():
    return secrets.token_hex(4)


@pytest.fixture
def open_backend(engine, run_id):
    """Maker of backends with settings; all are closed, and no container of the run is left."""
    from fiber_docker.backend import DockerBackend
    from fiber_docker.config import DockerConfig

    directory = rundir.create(run_id, "docker")
    with contextlib.ExitStack() as stack:
        stack.callback(rundir.remove, directory)

        def make(timing=Timing(), providers=types.MappingProxyType({}), **settings):
            config = DockerConfig(**{"host": engine.url, "pull": "never", **settings})
            context = BackendContext(run_id=run_id, run_directory=str(directory), config=config)
            backend = DockerBackend(attrs.evolve(context, timing=timing, providers=providers))
            stack.callback(backend.close)
            stack.callback(backend.cleanup, run_id)
            return backend

        yield make
    assert engine.containers(run_id) == []


@pytest.fixture
def run(engine, run_id):
    """Runner of shell scripts as jobs; returns the terminal status and the lines written."""

    def run_script(backend, script, **fields):
        spec = JobSpec(run_id=run_id, name="job", argv=("sh", "-c", script), image=engine.image)
        job = backend.submit(attrs.evolve(spec, **fields))
        statuses = (status for one, status in backend.events(run_id) if one.id == job.id)
        return next(one for one in statuses if one.state.is_terminal), list(backend.logs(job))

    return run_script


@pytest.fixture
def run_program(engine, tmp_path):
    """Runner of a program's text as a master; returns the completed process. No container is left."""

    def run_text(text, **settings):
        (tmp_path / "program.py").write_text(text)
        environ = engine.environ(**settings)
        done = ran(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={key: value for key, value in environ.items() if value is not None},
        )
        assert engine.containers() == []
        return done

    return run_text
