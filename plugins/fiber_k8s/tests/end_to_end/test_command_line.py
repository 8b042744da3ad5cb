"""The command on a cluster whose pods are real containers, with the rights that it prints."""

import json
import os
import sys

import pytest

import registry
from commands import ran
from require import need
from watched_run import check_watched

COMMAND = (sys.executable, "-m", "fiber.cli.main")
# an image is packed and pushed on a machine that is busy with other tests, and several times
pytestmark = pytest.mark.timeout(900)

POOL = """
import os

import fiber


def square(n):
    return n * n


def host(_):
    return os.uname().nodename


if __name__ == "__main__":
    with fiber.Pool(2) as pool:
        print(sum(pool.map(square, range(100))), fiber.get_backend().name)
        print(os.uname().nodename in pool.map(host, range(8)))
"""


@pytest.fixture
def fiber(kube, engine, tmp_path):
    """The command with the account's rights alone, from outside; nothing is left of it."""
    config = kube.write_kubeconfig(tmp_path / "kubeconfig", user="default/fiber")
    environ = {
        **os.environ,
        "KUBECONFIG": str(config),
        "FIBER_BACKEND": "k8s",
        "FIBER_IMAGE": engine.image,
        "XDG_RUNTIME_DIR": str(tmp_path),
    }

    def run(*words, code=0, **more):
        done = ran([*COMMAND, *words], env={**environ, **more}, cwd=tmp_path)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    run.environ = environ
    yield run
    kube.wait_until_gone()


def test_a_program_starts_pods_with_the_rights_that_are_printed(fiber):
    done = fiber("run", "-a", "python3", "-c", f"exec({POOL!r})")

    assert done.stdout == "328350 k8s\nFalse\n"


def test_without_them_one_error_says_how_to_install_them(fiber, kube):
    words = ("--service-account", "default", "python3", "-c", f"exec({POOL!r})")
    told = fiber("run", "-a", *words, code=1).stdout

    assert told.count("Traceback") == 1
    last = told.splitlines()[-1]
    assert last.startswith("fiber.exceptions.SubmitError: the cluster refused to list pods: ")
    assert "fiber k8s rbac --namespace default | kubectl apply -f -, and " in last
    assert "fiber run --service-account fiber" in last


def test_the_doctor_finds_nothing_from_outside_nor_from_inside(fiber):
    told = fiber("doctor", "--service-account", "fiber").stdout
    assert "k8s: fiber may: leases" in told
    assert "k8s: pods reach each other: by TCP" in told

    told = fiber("run", "-a", "python3", "-m", "fiber.cli.main", "doctor").stdout
    assert "k8s: this pod may: leases" in told
    assert "k8s: pods reach this program: by TCP" in told


def test_a_folders_image_is_built_pushed_to_a_registry_with_a_login_and_run(
    fiber, engine, tmp_path
):
    need("docker", registry.missing())
    for name in ("registry", "docker", "My Image"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "My Image"
    (folder / "Dockerfile").write_text(f"FROM {engine.image}\nCOPY words /words\n")
    (folder / "words").write_text("from the image\n")
    environ = {"DOCKER_HOST": engine.url, "DOCKER_CONFIG": str(tmp_path / "docker")}

    with registry.started(tmp_path / "registry") as running:
        words = (
            *("--image-file", str(folder / "Dockerfile")),
            *("--docker-registry", f"{running.address}/team", "cat", "/words"),
        )
        refused = fiber("run", "-a", *words, code=1, **environ)
        auths = {"auths": {running.address: {"auth": running.auth()}}}
        (tmp_path / "docker" / "config.json").write_text(json.dumps(auths))
        done = fiber("run", "-a", *words, **environ)

    assert f"log in: docker login {running.address}" in refused.stderr
    assert done.stdout == "from the image\n"
    assert f"pushing {running.address}/team/my-image:" in done.stderr


def test_a_program_in_a_pod_tells_how_far_it_is(fiber, kube, tmp_path):
    # whoever looks has rights to exec, and the pod has not
    environ = {**fiber.environ, "KUBECONFIG": str(kube.kubeconfig)}
    check_watched(environ, tmp_path, "python3", "--service-account", "fiber")
