"""Messages of programs about images that do not fit, and effects of their settings."""

import contextlib

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


def changed(engine, script):
    """Make an image in which a script has run; returns its name."""
    name = engine.named("changed")
    with contextlib.closing(engine.docker()) as client:
        made = client.containers.create(engine.image, ["sh", "-c", script])
        made.start()
        assert made.wait()["StatusCode"] == 0
        made.commit(name, "latest")
        made.remove()
    return f"{name}:latest"


@pytest.mark.parametrize(
    "script, named",
    [
        pytest.param(f"rm -r {FIBER}", "fiber-core", id="without fiber"),
        pytest.param(
            f"echo '__version__ = \"99.1.0\"' > $(echo {FIBER}/_version.py)",
            "99.1.0",
            id="another fiber",
        ),
    ],
)
def test_an_image_that_does_not_fit_is_reported(engine, run_program, script, named):
    """The engine starts it, and Python ends at once: the error has its last lines."""
    done = run_program(ONE, FIBER_IMAGE=changed(engine, script))

    assert done.returncode != 0
    assert "StartError" in done.stderr
    assert named in done.stderr, done.stderr


def test_a_worker_that_runs_out_of_memory_is_reported_so(run_program):
    done = run_program(GREEDY)

    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "1"
    assert "OOM" in "".join(rest) or "memory" in "".join(rest), rest


def test_processes_join_a_network_of_the_users(engine, run_program):
    with contextlib.closing(engine.docker()) as client:
        network = client.networks.create(engine.named("apart"))
        try:
            done = run_program(SUM, FIBER_DOCKER_NETWORK=network.name)
        finally:
            network.remove()

    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr


def test_the_engine_of_a_context_is_used(engine, run_program, tmp_path, monkeypatch):
    from docker.context import ContextAPI

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")
    ContextAPI.create_context("lab", host=engine.url)

    done = run_program(SUM, DOCKER_HOST=None, FIBER_DOCKER_CONTEXT="lab")

    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr
