"""``fiber k8s`` prints rights for the namespace in use, without asking a cluster."""

import json

import pytest
import yaml
from click.testing import CliRunner

from fiber.cli.main import cli
from fiber_k8s import rbac


@pytest.fixture
def fiber(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "FIBER_K8S_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        done = CliRunner().invoke(cli, words, prog_name="fiber")
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return list(yaml.safe_load_all(done.stdout))

    return run


@pytest.fixture
def kubeconfig(fiber, tmp_path, monkeypatch):
    context = {"cluster": "c", "user": "u", "namespace": "lab"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))


def namespaces(documents):
    return {document["metadata"]["namespace"] for document in documents}


def test_without_a_configuration_it_is_the_default_namespace(fiber):
    assert namespaces(fiber("k8s", "rbac")) == {"default"}


@pytest.mark.usefixtures("kubeconfig")
def test_it_is_the_contexts_namespace(fiber):
    assert namespaces(fiber("k8s", "rbac")) == {"lab"}


@pytest.mark.usefixtures("kubeconfig")
def test_a_setting_and_an_option_are_over_it(fiber, monkeypatch):
    monkeypatch.setenv("FIBER_K8S_NAMESPACE", "set")

    assert namespaces(fiber("k8s", "rbac")) == {"set"}
    assert namespaces(fiber("k8s", "rbac", "--namespace", "given")) == {"given"}


def test_all_of_it_can_be_chosen(fiber):
    found = fiber(
        *("k8s", "rbac", "--namespace", "lab", "--service-account", "jobs", "--user", "me"),
        *("--gang", "volcano", "--nodes"),
    )

    printed = rbac.manifests("lab", "jobs", users=["me"], gang="volcano", nodes=True)
    assert found == list(yaml.safe_load_all(printed))
