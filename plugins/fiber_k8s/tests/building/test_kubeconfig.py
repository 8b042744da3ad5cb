"""The cluster that an image is for is the one that the kubeconfig names."""

import json

import pytest

from fiber.exceptions import BackendUnavailableError
from fiber_k8s.building.cluster_registry import Cluster
from fiber_k8s.building.kubeconfig import configured_cluster
from fiber_k8s.config import K8sConfig

INFO = {"name": "cluster_info", "extension": {"provider": "minikube.sigs.k8s.io"}}
CONTENT = {
    "current-context": "one",
    "contexts": [
        {"name": "one", "context": {"cluster": "c1", "user": "u"}},
        {"name": "two", "context": {"cluster": "c2", "user": "u"}},
        {"name": "bare", "context": {"user": "u"}},
    ],
    "clusters": [
        {"name": "c1", "cluster": {"server": "https://one:6443"}},
        {"name": "c2", "cluster": {"server": "https://two:6443", "extensions": [INFO]}},
    ],
    "users": [{"name": "u", "user": {}}],
}


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def write(content):
        path = tmp_path / "config"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        monkeypatch.setenv("KUBECONFIG", str(path))
        return path

    return write


def test_the_current_context_is_meant(kubeconfig):
    kubeconfig(CONTENT)

    found = configured_cluster(K8sConfig())

    assert found == Cluster(context="one", name="c1", server="https://one:6443")


def test_another_may_be_named(kubeconfig):
    kubeconfig(CONTENT)

    found = configured_cluster(K8sConfig(context="two"))

    assert (found.name, found.server, found.provider) == ("c2", "https://two:6443", "minikube")


def test_a_file_may_be_named(kubeconfig, monkeypatch):
    path = kubeconfig(CONTENT)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    assert configured_cluster(K8sConfig(kubeconfig=str(path))).name == "c1"


@pytest.mark.parametrize("context", ["bare", "unknown"])
def test_unknown_names_are_empty(context, kubeconfig):
    kubeconfig(CONTENT)

    assert configured_cluster(K8sConfig(context=context)) == Cluster(context=context)


def test_of_several_files_the_first_that_has_it_counts(kubeconfig, monkeypatch, tmp_path):
    path = kubeconfig(CONTENT)
    other = tmp_path / "other"
    other.write_text(json.dumps({"current-context": "two"}))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{other}:{path}")

    assert configured_cluster(K8sConfig()).name == "c2"


def test_without_a_kubeconfig_all_names_are_empty(kubeconfig, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    assert configured_cluster(K8sConfig()) == Cluster()


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: b: c", "text"])
def test_one_that_makes_no_sense_is_an_error(text, kubeconfig):
    kubeconfig(text)

    with pytest.raises(BackendUnavailableError, match="see KUBECONFIG"):
        configured_cluster(K8sConfig())
