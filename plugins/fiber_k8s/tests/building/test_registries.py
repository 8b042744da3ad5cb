"""Registries of clouds and others: names in them, and advice for refused pushes."""

import pytest

from fiber.exceptions import ConfigError
from fiber_k8s.building.registries import Registry, RegistryKind, advice, kind_of, registry

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
ECR_CHINA = "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"
ARTIFACT = "europe-west1-docker.pkg.dev/lab/images"


class TestReading:
    @pytest.mark.parametrize(
        "text,kind,host,path",
        [
            (ECR, RegistryKind.ECR, ECR, ""),
            (f"{ECR}/team/", RegistryKind.ECR, ECR, "team"),
            (ECR_CHINA, RegistryKind.ECR, ECR_CHINA, ""),
            (ARTIFACT, RegistryKind.ARTIFACT, "europe-west1-docker.pkg.dev", "lab/images"),
            ("gcr.io/lab", RegistryKind.GCR, "gcr.io", "lab"),
            ("eu.gcr.io/lab/team", RegistryKind.GCR, "eu.gcr.io", "lab/team"),
            ("lab.azurecr.io", RegistryKind.ACR, "lab.azurecr.io", ""),
            ("docker.io/alice", RegistryKind.HUB, "docker.io", "alice"),
            # an account of Docker Hub alone
            ("alice", RegistryKind.HUB, "docker.io", "alice"),
            ("alice/team", RegistryKind.HUB, "docker.io", "alice/team"),
            ("ghcr.io/alice", RegistryKind.OTHER, "ghcr.io", "alice"),
            ("localhost:5000", RegistryKind.OTHER, "localhost:5000", ""),
            ("localhost/a", RegistryKind.OTHER, "localhost", "a"),
            ("10.0.0.7:5000/a/b", RegistryKind.OTHER, "10.0.0.7:5000", "a/b"),
            (" registry.lab:443 ", RegistryKind.OTHER, "registry.lab:443", ""),
        ],
    )
    def test_a_host_and_a_path_are_a_registry(self, text, kind, host, path):
        assert registry(text) == Registry(kind=kind, host=host, path=path)

    @pytest.mark.parametrize(
        "text,told",
        [
            ("", "write HOST, HOST:PORT or HOST/FOLDER"),
            ("/", "write HOST, HOST:PORT or HOST/FOLDER"),
            ("https://lab.azurecr.io", "write lab.azurecr.io alone"),
            ("gcr.io", "write gcr.io/PROJECT"),
            ("europe-west1-docker.pkg.dev/lab", "pkg.dev/PROJECT/REPOSITORY"),
            ("docker.io", "write docker.io/ACCOUNT"),
            ("ghcr.io/Alice", "small letters"),
            ("host:port/a", "no host of a registry"),
            ("lab.azurecr.io/a b", "no part of a repository"),
        ],
    )
    def test_what_cannot_be_one_is_refused_with_what_to_write(self, text, told):
        with pytest.raises(ConfigError) as caught:
            registry(text)

        assert told in str(caught.value)

    @pytest.mark.parametrize("host", ["12.dkr.ecr.eu-west-1.amazonaws.com", "my-gcr.io", "acr.io"])
    def test_a_host_that_only_looks_like_one_is_any_other(self, host):
        assert kind_of(host) is RegistryKind.OTHER


class TestNames:
    @pytest.mark.parametrize(
        "text,image",
        [
            (ECR, f"{ECR}/train:0a1b"),
            (f"{ECR}/team", f"{ECR}/team/train:0a1b"),
            (ARTIFACT, f"{ARTIFACT}/train:0a1b"),
            ("localhost:5000", "localhost:5000/train:0a1b"),
            ("alice", "docker.io/alice/train:0a1b"),
        ],
    )
    def test_an_image_is_named_in_it(self, text, image):
        assert str(registry(text).named("train", "0a1b")) == image


class TestAdvice:
    @pytest.mark.parametrize(
        "text,output,told",
        [
            (
                ECR,
                "no basic auth credentials",
                f"get-login-password --region eu-west-1 | podman login --username AWS --password-stdin {ECR}",
            ),
            (ECR, "denied: Your authorization token has expired.", "log in: aws ecr"),
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
            ("lab.azurecr.io", "unauthorized: authentication required", "az acr login --name lab"),
            (
                "alice",
                "denied: requested access to the resource is denied",
                "podman login docker.io",
            ),
            ("localhost:5000", "unauthorized", "log in: podman login localhost:5000"),
            (
                "localhost:5000",
                "http: server gave HTTP response to HTTPS client",
                "insecure registries",
            ),
            ("reg.lab", "dial tcp: lookup reg.lab: no such host", "reg.lab cannot be reached"),
            ("reg.lab", "dial tcp 10.0.0.7:443: connect: connection refused", "cannot be reached"),
            ("reg.lab", "something else", "whether podman push works by hand"),
        ],
    )
    def test_each_refusal_has_what_mends_it(self, text, output, told):
        assert told in advice(registry(text), "train", "podman", output)
