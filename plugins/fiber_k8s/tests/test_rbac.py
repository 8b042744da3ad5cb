"""The printed manifests have the rights of the list, as valid YAML."""

import pytest
import yaml
from kubernetes import client

from fiber_k8s.rbac import NODES, RULES, gang_rules, grant, manifests, rights


def documents(*args, **kwargs):
    return list(yaml.safe_load_all(manifests(*args, **kwargs)))


def by_kind(*args, **kwargs):
    return {document["kind"]: document for document in documents(*args, **kwargs)}


def as_rules(rules):
    return [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in rules
    ]


class TestTheList:
    def test_nothing_is_in_it_twice(self):
        assert len({str(right) for right in rights()}) == len(rights())

    def test_a_right_reads_as_it_is_asked_for(self):
        told = [str(right) for right in rights()]

        assert "create pods" in told
        assert "patch leases.coordination.k8s.io" in told

    def test_secrets_are_not_read(self):
        assert {right.verb for right in rights() if right.rule.resource == "secrets"} == {
            "create",
            "delete",
        }

    def test_no_rule_has_wildcards(self):
        assert not {"*"} & {word for rule in RULES for word in (*rule.verbs, rule.resource)}


class TestGranting:
    @pytest.mark.parametrize(
        "user,told",
        [
            ("alice@lab.org", "--user alice@lab.org | kubectl apply -f -"),
            ("O'Hara", """--user 'O'"'"'Hara' | kubectl"""),
            ("system:serviceaccount:lab:jobs", "--service-account jobs | kubectl apply -f -"),
            ("system:serviceaccount:lab:default", "have the program's pod use the account fiber"),
            ("system:serviceaccount:lab:default", ": fiber run --service-account fiber, or"),
        ],
    )
    def test_the_refused_subject_is_granted_the_right(self, user, told):
        refusal = f'pods is forbidden: User "{user}" cannot list resource "pods" in API group "" in the namespace "lab"'

        command = grant(refusal)

        assert command.startswith("fiber k8s rbac --namespace lab ")
        assert told in command

    def test_without_a_name_it_is_the_default(self):
        assert grant("no") == "fiber k8s rbac | kubectl apply -f -"


class TestYaml:
    def test_an_account_has_a_role_with_the_rights_in_its_namespace(self):
        found = by_kind("lab")

        assert list(found) == ["ServiceAccount", "Role", "RoleBinding"]
        for document in found.values():
            assert document["metadata"]["name"] == "fiber"
            assert document["metadata"]["namespace"] == "lab"
        assert found["Role"]["rules"] == as_rules(RULES)
        assert found["RoleBinding"]["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": "fiber",
        }
        assert found["RoleBinding"]["subjects"] == [
            {"kind": "ServiceAccount", "name": "fiber", "namespace": "lab"}
        ]

    def test_people_may_have_them_too(self):
        subjects = by_kind("lab", users=['alice@lab.org"', "no"])["RoleBinding"]["subjects"]

        assert subjects[1:] == [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
            for name in ('alice@lab.org"', "no")
        ]

    @pytest.mark.parametrize(
        "gang,group",
        [("volcano", "scheduling.volcano.sh"), ("scheduler-plugins", "scheduling.x-k8s.io")],
    )
    def test_groups_are_allowed_where_a_scheduler_needs_them(self, gang, group):
        rule = by_kind("lab", gang=gang)["Role"]["rules"][-1]

        assert rule["apiGroups"] == [group]
        assert rule["resources"] == ["podgroups"]

    @pytest.mark.parametrize("gang", ["none", "kueue"])
    def test_others_need_none(self, gang):
        assert gang_rules(gang) == ()

    def test_nodes_are_the_clusters(self):
        found = by_kind("lab", "jobs", nodes=True)

        assert found["ClusterRole"]["rules"] == as_rules([NODES])
        assert "namespace" not in found["ClusterRole"]["metadata"]
        assert found["ClusterRoleBinding"]["subjects"][0] == {
            "kind": "ServiceAccount",
            "name": "jobs",
            "namespace": "lab",
        }
        assert (
            found["ClusterRoleBinding"]["roleRef"]["name"]
            == (found["ClusterRole"]["metadata"]["name"])
        )

    def test_each_rule_says_what_it_is_for(self):
        text = manifests("lab")

        assert all(f"# {rule.why}\n" in text for rule in RULES)

    @pytest.mark.parametrize("name", ["null", "1e3", "on", "lab"])
    def test_names_stay_text(self, name):
        assert documents(name)[0]["metadata"]["namespace"] == name

    def test_the_official_client_reads_the_same(self):
        api = client.ApiClient()
        kinds = {
            "ServiceAccount": "V1ServiceAccount",
            "Role": "V1Role",
            "RoleBinding": "V1RoleBinding",
            "ClusterRole": "V1ClusterRole",
            "ClusterRoleBinding": "V1ClusterRoleBinding",
        }
        for document in documents("lab", users=["a"], nodes=True):
            # the names of the two versions of the client for a subject differ, what is sent not
            model = api._ApiClient__deserialize(document, kinds[document["kind"]])
            assert api.sanitize_for_serialization(model) == document
