"""Images: built by an installed engine, tagged by content, pushed or loaded for the cluster."""

import contextlib
import json
import stat

import pytest

from fiber.exceptions import BackendError, BackendUnavailableError, ConfigError
from fiber_k8s.config import K8sConfig
from fiber_k8s.connection import connect
from fiber_k8s.images import ENGINES, EngineError, find_engine, known_hosts, prepare
from fiber_k8s.registries import (
    Cluster,
    Registry,
    RegistryKind,
    advice,
    configured_cluster,
    detect_registry,
    load_command,
    registry,
)

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


@pytest.fixture
def no_sdk(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def build(folder, cluster=LAB, said=None, **settings):
    said = [] if said is None else said
    return prepare(str(folder), K8sConfig(**settings), lambda: cluster, said.append)


class TestBuilding:
    @pytest.mark.parametrize("engine", ENGINES)
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

    def test_the_first_engine_on_the_path_is_taken_unless_one_is_named(self, programs, folder):
        calls = programs("buildah", "podman")

        build(folder, registry="host:5000")
        build(folder, registry="host:5000", engine="buildah", platform="linux/amd64")

        assert [words[0] for words in calls()] == ["podman"] * 3 + ["buildah"] * 3
        assert "--platform linux/amd64" in " ".join(calls()[3])
        with pytest.raises(BackendError, match="docker is to build images and is not on PATH"):
            build(folder, registry="host:5000", engine="docker")

    def test_the_registry_is_the_clusters_unless_one_is_named(self, programs, folder):
        calls = programs("docker")
        cluster = Cluster(context="gke_lab_europe-west1_train")

        assert build(folder, cluster) == "gcr.io/lab/my-project:0123456789ab"
        assert build(folder, Cluster(context="kind-lab"), registry="alice").startswith("docker.io/")
        before = calls()
        with pytest.raises(BackendError, match="name one with --docker-registry"):
            build(folder)
        assert calls() == before, "something was built"

    @pytest.mark.parametrize(
        "step, words, told",
        [
            (
                "tag",
                "no space left",
                r"docker could not name an image.*\(exit code 3\): no space left$",
            ),
            ("push", "unauthorized: authentication required", "az acr login --name lab$"),
        ],
    )
    def test_a_step_that_fails_is_reported_with_its_last_line_or_with_what_mends_it(
        self, programs, folder, monkeypatch, step, words, told
    ):
        programs("docker")
        monkeypatch.setenv("FAILS", step)
        monkeypatch.setenv("FAILURE", words)

        with pytest.raises(EngineError if step == "tag" else BackendError, match=told):
            build(folder, registry="lab.azurecr.io")

    @pytest.mark.parametrize("engine, host", [("docker", ""), ("podman", "localhost/")])
    def test_for_a_cluster_of_this_host_it_is_loaded_where_that_is_needed(
        self, engine, host, programs, folder
    ):
        calls = programs(engine, "kind")

        build(folder, Cluster(context="docker-desktop"))
        image = build(folder, Cluster(context="kind-lab"))

        assert image == f"{host}fiber-my-project:0123456789ab"
        assert [words[1] for words in calls()] == ["build", "tag", "build", "tag", "load"]
        assert calls()[-2:] == [
            [engine, "tag", ID, image],
            ["kind", "load", "docker-image", image, "--name", "lab"],
        ]
        with pytest.raises(BackendError, match="minikube is not on PATH to load images"):
            build(folder, Cluster(context="minikube"))


class TestWithoutAnEngine:
    @pytest.mark.usefixtures("no_sdk", "programs")
    def test_a_missing_engine_is_an_error(self, folder):
        assert find_engine(None) is None
        with pytest.raises(BackendError, match="install one of docker, podman, buildah"):
            build(folder, registry="host:5000")

    @pytest.mark.usefixtures("no_sdk")
    def test_in_a_pod_the_programs_own_image_is_taken_unless_a_file_is_named(
        self, programs, folder
    ):
        said = []

        assert build(folder, Cluster(), said) is None
        assert said[0].startswith(f"{folder}/Dockerfile is not built, for nothing here builds")
        with pytest.raises(BackendError, match="install one of"):
            build(folder / "Dockerfile", Cluster(), registry="host:5000")
        programs("buildah")
        assert build(folder, Cluster(), registry="host:5000").startswith("host:5000/my-project:")

    @pytest.mark.usefixtures("programs")
    def test_the_plugin_for_docker_builds_where_it_is_installed(self, folder, monkeypatch):
        images = pytest.importorskip("fiber_docker.images")
        asked = []

        def built(self, path):
            if asked:
                raise BackendError("the Docker engine could not push x: no basic auth credentials")
            asked.append((path, self._config.registry))
            return "host:5000/team/my-project:1"

        monkeypatch.setattr(images.Images, "build", built)

        assert build(folder, registry="host:5000/team") == "host:5000/team/my-project:1"
        assert asked == [(f"{folder}/Dockerfile", "host:5000/team")]
        # its refusals have advice too
        with pytest.raises(BackendError, match="log in: docker login host:5000"):
            build(folder, registry="host:5000")


def test_registries_that_engines_know_are_found_and_no_credentials(tmp_path):
    environ = {"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    config = tmp_path / ".docker" / "config.json"
    config.parent.mkdir()
    auths = {"https://index.docker.io/v1/": {"auth": "c2VjcmV0"}, "ghcr.io": {}}
    config.write_text(json.dumps({"auths": auths, "credHelpers": {"lab.azurecr.io": "acr"}}))
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"host:5000": {}}}))

    assert known_hosts(environ) == ["host:5000", "index.docker.io", "ghcr.io", "lab.azurecr.io"]
    for nonsense in ("", "[]", '{"auths": null}'):
        config.write_text(nonsense)
        assert known_hosts(environ) == ["host:5000"]


ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
ARTIFACT = "europe-west1-docker.pkg.dev/lab/images"


class TestRegistries:
    @pytest.mark.parametrize(
        "text, kind, host, path",
        [
            (f"{ECR}/team/", RegistryKind.ECR, ECR, "team"),
            (ARTIFACT, RegistryKind.ARTIFACT, "europe-west1-docker.pkg.dev", "lab/images"),
            ("eu.gcr.io/lab/team", RegistryKind.GCR, "eu.gcr.io", "lab/team"),
            ("lab.azurecr.io", RegistryKind.ACR, "lab.azurecr.io", ""),
            # an account of Docker Hub alone
            ("alice/team", RegistryKind.HUB, "docker.io", "alice/team"),
            # these only look like those of a cloud
            (ECR[1:], RegistryKind.OTHER, ECR[1:], ""),
            ("my-gcr.io", RegistryKind.OTHER, "my-gcr.io", ""),
            ("localhost/a", RegistryKind.OTHER, "localhost", "a"),
            ("10.0.0.7:5000/a/b", RegistryKind.OTHER, "10.0.0.7:5000", "a/b"),
        ],
    )
    def test_a_host_and_a_path_are_one(self, text, kind, host, path):
        assert registry(text) == Registry(kind=kind, host=host, path=path)

    @pytest.mark.parametrize(
        "text, told",
        [
            ("/", "write HOST, HOST:PORT or HOST/FOLDER"),
            ("https://lab.azurecr.io", "write lab.azurecr.io alone"),
            ("gcr.io", "write gcr.io/PROJECT"),
            ("europe-west1-docker.pkg.dev/lab", "pkg.dev/PROJECT/REPOSITORY"),
            ("ghcr.io/Alice", "small letters"),
            ("host:port/a", "no host of a registry"),
            ("lab.azurecr.io/a b", "no part of a repository"),
        ],
    )
    def test_what_cannot_be_one_is_refused_with_what_to_write(self, text, told):
        with pytest.raises(ConfigError) as caught:
            registry(text)

        assert told in str(caught.value)

    @pytest.mark.parametrize(
        "text, output, told",
        [
            (ECR, "no basic auth credentials", f"login --username AWS --password-stdin {ECR}"),
            (
                f"{ECR}/team",
                "name unknown: The repository with name 'team/train' does not exist in the registry",
                "aws ecr create-repository --region eu-west-1 --repository-name team/train",
            ),
            (
                ARTIFACT,
                "denied: Unauthenticated request. Unauthenticated requests do not have permission",
                "login -u oauth2accesstoken --password-stdin europe-west1-docker.pkg.dev",
            ),
            (
                ARTIFACT,
                'name unknown: Repository "images" not found',
                "create images --repository-format=docker --location=europe-west1 --project=lab",
            ),
            (
                "eu.gcr.io/lab",
                "denied: gcr.io repo does not exist. Creating on push requires the permission",
                "repositories create eu.gcr.io --repository-format=docker --location=europe",
            ),
            ("alice", "denied: requested access to the resource", "podman login docker.io"),
            ("localhost:5000", "server gave HTTP response to HTTPS client", "insecure registries"),
            ("reg.lab", "dial tcp: lookup reg.lab: no such host", "reg.lab cannot be reached"),
            ("reg.lab", "something else", "whether podman push works by hand"),
        ],
    )
    def test_each_refusal_has_what_mends_it(self, text, output, told):
        assert told in advice(registry(text), "train", "podman", output)


EKS = Cluster(
    context="me@train.eu-west-1.eksctl.io", server="https://0A1B.gr7.eu-west-1.eks.amazonaws.com"
)
AKS = Cluster(context="train", server="https://train-dns-0a1b.hcp.westeurope.azmk8s.io:443")
ARN = "arn:aws:eks:eu-west-1:123456789012:cluster/train"


class TestRegistriesOfClusters:
    @pytest.mark.parametrize(
        "cluster, hosts, prefix",
        [
            (Cluster(context="train", name="gke_lab-1_europe-west1_train"), [], "gcr.io/lab-1"),
            (Cluster(context="gke_lab.org:one_us-east1_train"), [], "gcr.io/lab.org/one"),
            (Cluster(context="work", name=ARN), [], ECR),
            (Cluster(context=ARN.replace("aws", "aws-cn")), [], f"{ECR}.cn"),
            # the one that the engine knows, in the cluster's region
            (EKS, ["ghcr.io", ECR.replace("eu-west", "us-east"), ECR], ECR),
            (AKS, ["ghcr.io", "lab.azurecr.io"], "lab.azurecr.io"),
        ],
    )
    def test_a_clouds_names_identify_its_registry(self, cluster, hosts, prefix):
        assert detect_registry(cluster, hosts).prefix == prefix

    @pytest.mark.parametrize(
        "cluster, hosts, told",
        [
            (EKS, [], ".dkr.ecr.eu-west-1.amazonaws.com"),
            (AKS, ["a.azurecr.io", "b.azurecr.io"], "credentials for a.azurecr.io, b.azurecr.io"),
            (LAB, ["ghcr.io"], "'lab' pulls from cannot be told (the engine has credentials for"),
            (Cluster(), [], "which registry this cluster pulls from"),
        ],
    )
    def test_an_unknown_registry_is_asked_for(self, cluster, hosts, told):
        with pytest.raises(BackendError) as caught:
            detect_registry(cluster, hosts)

        assert told in str(caught.value)
        assert "FIBER_K8S_REGISTRY" in str(caught.value)

    @pytest.mark.parametrize(
        "cluster, argv",
        [
            (Cluster(context="x", name="kind-lab"), "kind load docker-image a:1 --name lab"),
            (Cluster(context="k3d-lab"), "k3d image import a:1 --cluster lab"),
            (Cluster(context="minikube"), "minikube image load a:1 --profile minikube"),
            (Cluster(context="lab", provider="minikube"), "minikube image load a:1 --profile lab"),
            (Cluster(context="orbstack"), ""),
            # all others need a registry
            (Cluster(context="kindly"), None),
            (Cluster(), None),
        ],
    )
    def test_on_this_host_images_are_loaded(self, cluster, argv):
        assert load_command(cluster, "a:1") == (argv if argv is None else tuple(argv.split()))


INFO = {"name": "cluster_info", "extension": {"provider": "minikube.sigs.k8s.io"}}
CONTENT = {
    "current-context": "one",
    "contexts": [
        {"name": "one", "context": {"cluster": "c1", "user": "u"}},
        {"name": "two", "context": {"cluster": "c2", "user": "u"}},
    ],
    "clusters": [
        {"name": "c1", "cluster": {"server": "https://one:6443"}},
        {"name": "c2", "cluster": {"server": "https://two:6443", "extensions": [INFO]}},
    ],
}


class TestTheConfiguredCluster:
    @pytest.fixture
    def kubeconfig(self, tmp_path, monkeypatch):
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

        def write(content):
            path = tmp_path / "config"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            monkeypatch.setenv("KUBECONFIG", str(path))
            return path

        return write

    def test_the_current_context_is_meant_unless_one_is_named(self, kubeconfig):
        kubeconfig(CONTENT)
        two = Cluster(context="two", name="c2", server="https://two:6443", provider="minikube")
        assert configured_cluster(K8sConfig(context="two")) == two
        assert configured_cluster(K8sConfig(context="unknown")) == Cluster(context="unknown")

    def test_of_several_files_the_first_that_has_it_counts_and_one_may_be_named(
        self, kubeconfig, monkeypatch, tmp_path
    ):
        path = kubeconfig(CONTENT)
        other = tmp_path / "other"
        other.write_text(json.dumps({"current-context": "two"}))
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{other}:{path}")
        assert configured_cluster(K8sConfig()).name == "c2"
        with contextlib.closing(connect(K8sConfig())) as connection:
            assert connection.host == "https://two:6443"

        monkeypatch.setenv("KUBECONFIG", "/nowhere")
        assert configured_cluster(K8sConfig()) == Cluster()
        one = Cluster(context="one", name="c1", server="https://one:6443")
        assert configured_cluster(K8sConfig(kubeconfig=str(path))) == one

    @pytest.mark.parametrize("text", ["- a\n- b\n", "a: b: c", "text"])
    def test_one_that_makes_no_sense_is_an_error(self, text, kubeconfig):
        kubeconfig(text)

        for read in configured_cluster, connect:
            with pytest.raises(BackendUnavailableError, match="with KUBECONFIG"):
                read(K8sConfig())
