"""Messages of programs about images that do not fit, and effects of their settings."""

import contextlib
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

ONE = """
import fiber

if __name__ == "__main__":
    process = fiber.Process(target=print, args=("hello",))
    process.start()
    process.join()
"""

SUM = """
import fiber

if __name__ == "__main__":
    with fiber.Pool(2) as pool:
        print(sum(pool.map(abs, range(10))))
"""

GREEDY = """
import fiber

@fiber.meta(memory=128)
def take(megabytes):
    return len(bytearray(megabytes << 20))

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        print(pool.apply(take, (1,)) >> 20)
        try:
            pool.apply(take, (512,))
        except fiber.WorkerCrashedError as error:
            print(error)
"""

FIBER = "/usr/local/lib/python3*/site-packages/fiber"


@pytest.fixture
def run(engine, tmp_path):
    """Runner of programs; returns the completed process. No container is left."""

    def run_text(text, **settings):
        (tmp_path / "program.py").write_text(text)
        environ = {
            **os.environ,
            "FIBER_BACKEND": "docker",
            "FIBER_IMAGE": engine.image,
            "DOCKER_HOST": engine.url,
            **settings,
        }
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            env={key: value for key, value in environ.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert engine.containers() == []
        return done

    return run_text


def changed(engine, name, script):
    """Make an image in which a script has run."""
    with contextlib.closing(engine.docker()) as client:
        made = client.containers.create(engine.image, ["sh", "-c", script])
        made.start()
        assert made.wait()["StatusCode"] == 0
        made.commit(name, "latest")
        made.remove()


def test_an_image_without_fiber_is_reported(engine, run):
    """The engine starts it, and Python ends at once: the error has its last lines."""
    changed(engine, "without-fiber", f"rm -r {FIBER}")

    done = run(ONE, FIBER_IMAGE="without-fiber")

    assert done.returncode != 0
    assert "StartError" in done.stderr
    assert "fiber-core" in done.stderr, done.stderr


def test_an_image_with_another_fiber_is_reported_with_both_versions(engine, run):
    changed(engine, "other-fiber", f"echo '__version__ = \"99.1.0\"' > $(echo {FIBER}/_version.py)")

    done = run(ONE, FIBER_IMAGE="other-fiber")

    assert done.returncode != 0
    assert "StartError" in done.stderr
    assert "99.1.0" in done.stderr, done.stderr


def test_a_worker_that_runs_out_of_memory_is_reported_so(run):
    done = run(GREEDY)

    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "1"
    assert "OOM" in "".join(rest) or "memory" in "".join(rest), rest


def test_processes_join_a_network_of_the_users(engine, run):
    with contextlib.closing(engine.docker()) as client:
        network = client.networks.create("apart")
        try:
            done = run(SUM, FIBER_DOCKER_NETWORK="apart")
        finally:
            network.remove()

    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr


def test_the_engine_of_a_context_is_used(engine, run, tmp_path, monkeypatch):
    from docker.context import ContextAPI

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")
    ContextAPI.create_context("lab", host=engine.url)

    done = run(SUM, DOCKER_HOST=None, FIBER_DOCKER_CONTEXT="lab")

    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr
