"""Registries by the names of clusters; clusters on this host need none."""

import pytest

from fiber.exceptions import BackendError
from fiber_k8s.building.cluster_registry import Cluster, detect_registry, load_command

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
EKS = Cluster(
    context="me@train.eu-west-1.eksctl.io",
    server="https://0A1B.gr7.eu-west-1.eks.amazonaws.com",
)
AKS = Cluster(context="train", server="https://train-dns-0a1b.hcp.westeurope.azmk8s.io:443")


class TestDetection:
    @pytest.mark.parametrize(
        "context,name,prefix",
        [
            ("gke_lab-1_europe-west1-b_train", "", "gcr.io/lab-1"),
            ("train", "gke_lab-1_europe-west1_train", "gcr.io/lab-1"),
            ("gke_lab.org:one_us-east1_train", "", "gcr.io/lab.org/one"),
            ("arn:aws:eks:eu-west-1:123456789012:cluster/train", "", ECR),
            ("work", "arn:aws:eks:eu-west-1:123456789012:cluster/train", ECR),
            (
                "arn:aws-cn:eks:cn-north-1:123456789012:cluster/train",
                "",
                "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
            ),
        ],
    )
    def test_a_clouds_names_identify_its_registry(self, context, name, prefix):
        assert detect_registry(Cluster(context=context, name=name), []).prefix == prefix

    def test_the_one_that_the_engine_knows_is_taken_in_the_clusters_region(self):
        others = ["ghcr.io", "123456789012.dkr.ecr.us-east-1.amazonaws.com"]

        assert detect_registry(EKS, [*others, ECR]).prefix == ECR
        assert detect_registry(AKS, ["ghcr.io", "lab.azurecr.io"]).prefix == "lab.azurecr.io"

    @pytest.mark.parametrize(
        "cluster,hosts,told",
        [
            (EKS, [], "Amazon's region eu-west-1"),
            (EKS, [], ".dkr.ecr.eu-west-1.amazonaws.com"),
            (AKS, ["a.azurecr.io", "b.azurecr.io"], "credentials for a.azurecr.io, b.azurecr.io"),
            (AKS, [], "--docker-registry NAME.azurecr.io"),
            (Cluster(context="lab"), [], "context 'lab' pulls from cannot be told: name one with"),
            (Cluster(context="lab"), ["ghcr.io"], "(the engine has credentials for ghcr.io)"),
            (Cluster(), [], "which registry this cluster pulls from"),
        ],
    )
    def test_an_unknown_registry_is_asked_for(self, cluster, hosts, told):
        with pytest.raises(BackendError) as caught:
            detect_registry(cluster, hosts)

        assert told in str(caught.value)
        assert "FIBER_K8S_REGISTRY" in str(caught.value)


class TestClustersOnThisHost:
    @pytest.mark.parametrize(
        "cluster,argv",
        [
            (Cluster(context="kind-lab"), "kind load docker-image a:1 --name lab"),
            (Cluster(context="x", name="kind-lab"), "kind load docker-image a:1 --name lab"),
            (Cluster(context="k3d-lab"), "k3d image import a:1 --cluster lab"),
            (Cluster(context="minikube"), "minikube image load a:1 --profile minikube"),
            (
                Cluster(context="lab", provider="minikube"),
                "minikube image load a:1 --profile lab",
            ),
            (Cluster(context="docker-desktop"), ""),
            (Cluster(context="orbstack"), ""),
        ],
    )
    def test_images_are_loaded(self, cluster, argv):
        assert load_command(cluster, "a:1") == tuple(argv.split())

    @pytest.mark.parametrize("context", ["", "lab", "kindly", "gke_a_b_c"])
    def test_all_others_need_a_registry(self, context):
        assert load_command(Cluster(context=context), "a:1") is None
