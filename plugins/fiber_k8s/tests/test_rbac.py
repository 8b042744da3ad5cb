"""The printed manifests have the rights of the list, as valid YAML, for the namespace in use."""

import json

import pytest
import yaml
from click.testing import CliRunner
from kubernetes import client

from fiber.cli.main import cli
from fiber_k8s.rbac import NODES, RULES, gang_rules, grant, manifests, rights

OPTIONS = ("--exec", "--port-forward")


def by_kind(*args, **kwargs):
    return {one["kind"]: one for one in yaml.safe_load_all(manifests(*args, **kwargs))}


def as_rules(rules):
    return [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in rules
    ]


def test_secrets_are_not_read():
    verbs = {right.verb for right in rights() if right.rule.resource == "secrets"}
    assert verbs == {"create", "delete"}


@pytest.mark.parametrize(
    "user, told",
    [
        ("alice@lab.org", "--user alice@lab.org | kubectl apply -f -"),
        ("O'Hara", """--user 'O'"'"'Hara' | kubectl"""),
        ("system:serviceaccount:lab:jobs", "--service-account jobs | kubectl apply -f -"),
        ("system:serviceaccount:lab:default", ": fiber run --service-account fiber, or"),
    ],
)
def test_the_refused_subject_is_granted_the_right(user, told):
    refusal = f'pods is forbidden: User "{user}" cannot list resource "pods" in API group "" in the namespace "lab"'

    command = grant(refusal)

    assert command.startswith("fiber k8s rbac --namespace lab ")
    assert told in command
    assert grant("no") == "fiber k8s rbac | kubectl apply -f -"
    optional = grant(refusal.replace('list resource "pods"', 'create resource "pods/exec"'))
    assert optional == command.replace(" --namespace lab", " --namespace lab --exec", 1)


class TestYaml:
    def test_an_account_and_people_have_a_role_with_the_rights_in_its_namespace(self):
        people = ['alice@lab.org"', "no"]
        found = by_kind("lab", users=people)

        assert list(found) == ["ServiceAccount", "Role", "RoleBinding"]
        for document in found.values():
            assert document["metadata"]["name"] == "fiber"
            assert document["metadata"]["namespace"] == "lab"
        ordinary = [rule for rule in RULES if rule.option is None]
        assert found["Role"]["rules"] == as_rules(ordinary)
        assert not {"pods/exec", "pods/portforward"} & {rule.resource for rule in ordinary}
        assert by_kind("lab", options=OPTIONS)["Role"]["rules"] == as_rules(RULES)
        group = found["RoleBinding"]["roleRef"]["apiGroup"]
        assert found["RoleBinding"]["subjects"] == [
            {"kind": "ServiceAccount", "name": "fiber", "namespace": "lab"},
            *({"apiGroup": group, "kind": "User", "name": name} for name in people),
        ]

    @pytest.mark.parametrize(
        "gang, group",
        [("volcano", "scheduling.volcano.sh"), ("scheduler-plugins", "scheduling.x-k8s.io")],
    )
    def test_groups_are_allowed_where_a_scheduler_needs_them(self, gang, group):
        rule = by_kind("lab", gang=gang)["Role"]["rules"][-1]

        assert (rule["apiGroups"], rule["resources"]) == ([group], ["podgroups"])
        assert gang_rules("none") == gang_rules("kueue") == ()

    def test_nodes_are_the_clusters(self):
        found = by_kind("lab", "jobs", nodes=True)
        role, binding = found["ClusterRole"], found["ClusterRoleBinding"]

        assert role["rules"] == as_rules([NODES])
        assert "namespace" not in role["metadata"]
        account = {"kind": "ServiceAccount", "name": "jobs", "namespace": "lab"}
        assert binding["subjects"][0] == account
        assert binding["roleRef"]["name"] == role["metadata"]["name"]

    @pytest.mark.parametrize("name", ["null", "1e3", "on"])
    def test_names_stay_text(self, name):
        assert by_kind(name)["Role"]["metadata"]["namespace"] == name

    def test_the_official_client_reads_the_same(self):
        api = client.ApiClient()
        for kind, document in by_kind("lab", users=["a"], nodes=True).items():
            # the names of the two versions of the client for a subject differ, what is sent not
            model = api._ApiClient__deserialize(document, f"V1{kind}")
            assert api.sanitize_for_serialization(model) == document


class TestTheCommand:
    """``fiber k8s rbac`` asks no cluster."""

    @pytest.fixture
    def printed(self, monkeypatch, tmp_path):
        for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "FIBER_K8S_NAMESPACE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)

        def run(*words):
            done = CliRunner().invoke(cli, ("k8s", "rbac", *words), prog_name="fiber")
            assert (done.exit_code, done.stderr) == (0, ""), done.output
            return done.stdout

        return run

    def test_the_namespace_is_the_options_the_settings_the_contexts_or_the_default(
        self, printed, monkeypatch, tmp_path
    ):
        def namespace(*words):
            return next(yaml.safe_load_all(printed(*words)))["metadata"]["namespace"]

        assert namespace() == "default"
        content = {
            "current-context": "one",
            "contexts": [{"name": "one", "context": {"cluster": "c", "namespace": "lab"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        }
        (tmp_path / "config").write_text(json.dumps(content))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        assert namespace() == "lab"
        monkeypatch.setenv("FIBER_K8S_NAMESPACE", "set")
        assert namespace() == "set"
        assert namespace("--namespace", "given") == "given"

    def test_all_of_it_can_be_chosen(self, printed):
        told = printed(
            *("--namespace", "lab", "--service-account", "jobs", "--user", "me"),
            *("--gang", "volcano", "--nodes", *OPTIONS),
        )

        chosen = {"users": ["me"], "gang": "volcano", "nodes": True, "options": OPTIONS}
        wanted = manifests("lab", "jobs", **chosen)
        assert told.strip() == wanted.strip()
