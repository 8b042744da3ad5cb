"""Images are built by an installed engine, tagged by content, and pushed or loaded."""

import json
import stat

import pytest

from fiber.exceptions import AmbiguousImageError, BackendError
from fiber_k8s.building import engines
from fiber_k8s.building.cluster_registry import Cluster
from fiber_k8s.building.engines import EngineError, find_engine, known_hosts
from fiber_k8s.building.images import prepare
from fiber_k8s.config import K8sConfig

ID = "sha256:0123456789abcdef" + "0" * 48
LAB = Cluster(context="lab")
#: says what it was called with; "build" leaves an image's id where it was told to
ENGINE = f"""#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
if [ "$1" = build ]; then
    while [ "$1" != --iidfile ]; do shift; done
    echo 'STEP 1: FROM scratch'
    printf '{ID}\\n' > "$2"
fi
if [ "$1" = "$FAILS" ]; then echo "$FAILURE" >&2; exit 3; fi
exit 0
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs on PATH, and nothing else; return the arguments of their calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"
    calls.touch()
    for name in ("basename", "sh"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("FAILS", "FAILURE", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)

    def add(*names):
        for name in names:
            (folder / name).write_text(ENGINE)
            (folder / name).chmod(stat.S_IRWXU)
        return lambda: [line.split() for line in calls.read_text().splitlines()]

    return add


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "My Project"
    made.mkdir()
    (made / "Dockerfile").write_text("FROM scratch\n")
    return made


def build(folder, cluster=LAB, said=None, **settings):
    said = [] if said is None else said
    return prepare(str(folder), K8sConfig(**settings), lambda: cluster, said.append)


class TestBuilding:
    @pytest.mark.parametrize("engine", engines.ENGINES)
    def test_it_is_built_named_by_its_id_and_pushed(self, engine, programs, folder):
        calls = programs(engine)
        said = []

        image = build(folder, said=said, registry="host:5000/team")

        assert image == "host:5000/team/my-project:0123456789ab"
        built, named, pushed = calls()
        assert built[:2] == [engine, "build"]
        assert " ".join(built).endswith(f"--file {folder}/Dockerfile {folder}")
        assert named == [engine, "tag", ID, image]
        assert pushed == [engine, "push", image]
        assert said == [
            f"building {folder}/Dockerfile with {engine}",
            "STEP 1: FROM scratch",
            f"pushing {image}",
        ]

    def test_the_first_engine_on_the_path_is_taken(self, programs, folder):
        calls = programs("buildah", "podman")

        build(folder, registry="host:5000")

        assert {words[0] for words in calls()} == {"podman"}

    def test_another_engine_may_be_named(self, programs, folder):
        calls = programs("buildah", "podman")

        build(folder, registry="host:5000", engine="buildah", platform="linux/amd64")

        assert {words[0] for words in calls()} == {"buildah"}
        assert "--platform linux/amd64" in " ".join(calls()[0])

    def test_a_named_engine_that_is_missing_is_an_error(self, programs, folder):
        programs("podman")

        with pytest.raises(BackendError, match="buildah is to build images and is not on PATH"):
            build(folder, registry="host:5000", engine="buildah")

    def test_the_registry_is_found_by_the_cluster(self, programs, folder):
        programs("docker")
        cluster = Cluster(context="gke_lab_europe-west1_train")

        assert build(folder, cluster) == "gcr.io/lab/my-project:0123456789ab"

    def test_one_that_is_named_goes_before(self, programs, folder):
        programs("docker")

        assert build(folder, Cluster(context="kind-lab"), registry="alice").startswith("docker.io/")

    def test_an_unknown_registry_is_an_error_before_anything_is_built(self, programs, folder):
        calls = programs("docker")

        with pytest.raises(BackendError, match="name one with --docker-registry"):
            build(folder)

        assert calls() == []

    def test_a_folder_without_a_dockerfile_has_none(self, programs, tmp_path):
        (tmp_path / "empty").mkdir()

        assert build(tmp_path / "empty") is None

    def test_one_other_file_is_as_good_and_several_are_asked_for(self, programs, folder):
        calls = programs("docker")
        (folder / "Dockerfile").rename(folder / "gpu.docker")

        build(folder, registry="host:5000")
        (folder / "cpu.docker").touch()
        with pytest.raises(AmbiguousImageError, match="cpu.docker, gpu.docker"):
            build(folder, registry="host:5000")
        build(folder / "gpu.docker", registry="host:5000")

        assert len([words for words in calls() if f"{folder}/gpu.docker" in " ".join(words)]) == 2


class TestFailures:
    def test_a_step_that_fails_is_reported_with_its_last_line(self, programs, folder, monkeypatch):
        programs("docker")
        monkeypatch.setenv("FAILS", "tag")
        monkeypatch.setenv("FAILURE", "no space left on device")

        with pytest.raises(EngineError) as caught:
            build(folder, registry="host:5000")

        assert "docker could not name an image" in str(caught.value)
        assert str(caught.value).endswith("(exit code 3): no space left on device")

    def test_a_refused_push_is_an_error_with_the_login_command(self, programs, folder, monkeypatch):
        programs("podman")
        monkeypatch.setenv("FAILS", "push")
        monkeypatch.setenv("FAILURE", "unauthorized: authentication required")

        with pytest.raises(BackendError, match="az acr login --name lab$"):
            build(folder, registry="lab.azurecr.io")

    def test_a_missing_engine_is_an_error(self, programs, folder, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

        with pytest.raises(BackendError, match="install one of docker, podman, buildah"):
            build(folder, registry="host:5000")


class TestInAPod:
    """Where nothing builds images, a program's own is as good as the folder's."""

    @pytest.fixture(autouse=True)
    def no_sdk(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    def test_the_programs_own_is_taken(self, programs, folder):
        said = []

        assert build(folder, Cluster(), said) is None
        assert said[0].startswith(f"{folder}/Dockerfile is not built, for nothing here builds")

    def test_a_file_that_was_named_is_an_error(self, programs, folder):
        with pytest.raises(BackendError, match="install one of"):
            build(folder / "Dockerfile", Cluster(), registry="host:5000")

    def test_an_installed_engine_builds(self, programs, folder):
        programs("buildah")

        assert build(folder, Cluster(), registry="host:5000").startswith("host:5000/my-project:")


class TestClustersOnThisHost:
    @pytest.mark.parametrize("engine,host", [("docker", ""), ("podman", "localhost/")])
    def test_an_image_is_loaded_without_a_registry(self, engine, host, programs, folder):
        calls = programs(engine, "kind")

        image = build(folder, Cluster(context="kind-lab"))

        assert image == f"{host}fiber-my-project:0123456789ab"
        assert calls()[1:] == [
            [engine, "tag", ID, image],
            ["kind", "load", "docker-image", image, "--name", "lab"],
        ]

    def test_nodes_that_have_the_engines_images_need_nothing(self, programs, folder):
        calls = programs("docker")

        build(folder, Cluster(context="docker-desktop"))

        assert [words[1] for words in calls()] == ["build", "tag"]

    def test_a_program_that_is_missing_is_reported(self, programs, folder):
        programs("docker")

        with pytest.raises(BackendError, match="minikube is not on PATH to load images"):
            build(folder, Cluster(context="minikube"))


class TestTheSdk:
    """Without an engine's program, the plugin for Docker builds where it is installed."""

    def test_it_builds_and_pushes(self, programs, folder, monkeypatch):
        images = pytest.importorskip("fiber_docker.images")
        asked = []

        def built(self, path):
            asked.append((path, self._config.registry))
            return "host:5000/team/my-project:1"

        monkeypatch.setattr(images.Images, "build", built)

        assert build(folder, registry="host:5000/team") == "host:5000/team/my-project:1"
        assert asked == [(f"{folder}/Dockerfile", "host:5000/team")]

    def test_its_refusals_have_advice_too(self, programs, folder, monkeypatch):
        images = pytest.importorskip("fiber_docker.images")

        def refused(self, path):
            raise BackendError("the Docker engine could not push x: no basic auth credentials")

        monkeypatch.setattr(images.Images, "build", refused)

        with pytest.raises(BackendError, match="log in: docker login host:5000"):
            build(folder, registry="host:5000")


class TestCredentials:
    def test_registries_that_engines_know_are_found_and_no_credentials(self, tmp_path):
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker" / "config.json").write_text(
            json.dumps(
                {
                    "auths": {"https://index.docker.io/v1/": {"auth": "c2VjcmV0"}, "ghcr.io": {}},
                    "credHelpers": {"lab.azurecr.io": "acr"},
                }
            )
        )
        (tmp_path / "auth.json").write_text(json.dumps({"auths": {"host:5000": {}}}))
        environ = {"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}

        assert known_hosts(environ) == ["host:5000", "index.docker.io", "ghcr.io", "lab.azurecr.io"]

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"auths": null}'])
    def test_a_file_that_makes_no_sense_has_none(self, text, tmp_path):
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker" / "config.json").write_text(text)

        assert known_hosts({"HOME": str(tmp_path)}) == []

    def test_no_engine_is_none(self, programs):
        assert find_engine(None) is None
