"""The command on a cluster whose pods are real containers, with the rights that it prints."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import registry
from require import need

COMMAND = (sys.executable, "-m", "fiber.cli.main")
TIMEOUT = 120.0

# a test runs the command several times
pytestmark = pytest.mark.timeout(400)

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


@pytest.fixture(scope="module", autouse=True)
def claim(kube):
    kube.create_claim("nfs")


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
        done = subprocess.run(
            [*COMMAND, *words],
            env={**environ, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    yield run
    for plural in ("pods", "secrets", "leases"):
        kube.wait_for(plural, lambda things: not things)


def attached(fiber, *words, **more):
    return fiber("run", "-a", *words, **more)


class TestPrograms:
    @pytest.mark.parametrize(
        "words, code, told",
        [
            (("sh", "-c", "echo $FIBER_BACKEND >&2; exit 3"), 3, "k8s\n"),
            (("sh", "-c", "kill -9 $$"), 137, "SIGKILL"),
            (("no-such-program",), 127, "No such file"),
        ],
        ids=["exit", "signal", "missing"],
    )
    def test_a_programs_words_and_code_are_ours(self, fiber, words, code, told):
        done = attached(fiber, *words, code=code)

        assert told in done.stdout + done.stderr
        assert done.stderr.startswith("Created pod: fiber-")

    def test_it_starts_pods_with_the_rights_that_are_printed(self, fiber):
        done = attached(fiber, "python3", "-c", f"exec({POOL!r})")

        assert done.stdout == "328350 k8s\nFalse\n"

    def test_without_them_one_error_says_how_to_install_them(self, fiber, kube):
        words = ("--service-account", "default", "python3", "-c", f"exec({POOL!r})")
        told = attached(fiber, *words, code=1).stdout

        assert told.count("Traceback") == 1
        last = told.splitlines()[-1]
        assert last.startswith("fiber.exceptions.SubmitError: the cluster refused to list pods: ")
        assert "fiber k8s rbac --namespace default | kubectl apply -f -, and " in last
        assert "fiber run --service-account fiber" in last


class TestClaims:
    def test_a_file_of_one_job_is_read_by_the_next(self, fiber):
        attached(fiber, "-v", "nfs", "sh", "-c", "echo 42 > /persistent/answer")

        assert attached(fiber, "-v", "nfs:/data:ro", "cat", "/data/answer").stdout == "42\n"
        refused = attached(fiber, "-v", "nfs:/d:ro", "sh", "-c", "touch /d/x", code=1)
        assert "ead-only" in refused.stdout + refused.stderr

    def test_files_are_copied_to_a_claim_and_back(self, fiber, tmp_path):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "a file").write_text("a\n")

        fiber("cp", "data", "nfs:copied")
        told = attached(fiber, "-v", "nfs", "cat", "/persistent/copied/a file").stdout
        fiber("cp", "nfs:copied", "back")

        assert told == "a\n"
        assert (tmp_path / "back" / "a file").read_text() == "a\n"

    def test_a_missing_file_is_reported_and_leaves_no_pod(self, fiber):
        assert "no file or folder" in fiber("cp", "nfs:nothing", ".", code=1).stderr


class TestLookingAfter:
    @pytest.fixture
    def pod(self, fiber, kube):
        """A pod that waits for a file."""
        words = "echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo gone; exit 5"
        told = fiber("run", "--service-account", "fiber", "sh", "-c", words).stdout
        name = told.removeprefix("Created pod: ").strip()
        kube.wait_for("pods", lambda pods: pods[0]["status"].get("phase") == "Running")
        yield name
        fiber("kill", "--now", name)
        # the command that began the run has ended
        fiber("gc")

    def test_programs_run_beside_it_and_its_log_is_followed(self, fiber, pod):
        done = fiber("exec", pod, "--", "sh", "-c", 'echo "$0" "$1"; exit 4', "a b", "--c", code=4)
        assert done.stdout == "a b --c\n"

        fiber("exec", pod, "--", "touch", "/tmp/go")

        assert fiber("logs", "-f", pod).stdout == "up\ngone\n"
        assert pod not in fiber("ps").stdout
        assert "failed EXIT(5)" in fiber("ps", "-a").stdout


class TestTheDoctor:
    def test_it_finds_nothing_from_outside(self, fiber):
        told = fiber("doctor", "--service-account", "fiber").stdout

        assert "k8s: fiber may: leases" in told
        assert "k8s: pods reach each other: by TCP" in told

    def test_it_finds_nothing_from_inside(self, fiber):
        told = attached(fiber, "python3", "-m", "fiber.cli.main", "doctor").stdout

        assert "k8s: this pod may: leases" in told
        assert "k8s: pods reach this program: by TCP" in told


class TestImages:
    @pytest.fixture
    def registry(self, tmp_path):
        need("docker", registry.missing())
        (tmp_path / "registry").mkdir()
        with registry.started(tmp_path / "registry") as running:
            yield running

    @pytest.fixture
    def folder(self, tmp_path, engine):
        made = tmp_path / "My Image"
        made.mkdir()
        text = f"""
            FROM {engine.image}
            COPY words /words
            """
        (made / "Dockerfile").write_text(textwrap.dedent(text))
        (made / "words").write_text("from the image\n")
        return made

    def test_a_folders_image_is_built_pushed_and_run(
        self, fiber, registry, folder, engine, tmp_path
    ):
        logins = tmp_path / "docker"
        logins.mkdir()
        auths = {"auths": {registry.address: {"auth": registry.auth()}}}
        (logins / "config.json").write_text(json.dumps(auths))

        done = attached(
            *(fiber, "--image-file", str(folder / "Dockerfile")),
            *("--docker-registry", f"{registry.address}/team", "cat", "/words"),
            DOCKER_HOST=engine.url,
            DOCKER_CONFIG=str(logins),
        )

        assert done.stdout == "from the image\n"
        assert f"pushing {registry.address}/team/my-image:" in done.stderr

    def test_a_registry_that_needs_a_login_is_an_error_with_the_command(
        self, fiber, registry, folder, engine, tmp_path
    ):
        done = attached(
            *(fiber, "--image-file", str(folder / "Dockerfile")),
            *("--docker-registry", registry.address, "true"),
            code=1,
            DOCKER_HOST=engine.url,
            DOCKER_CONFIG=str(tmp_path),
        )

        assert f"log in: docker login {registry.address}" in done.stderr
