"""Errors of the API server: messages, advice, which of them are transient."""

import pytest

from fiber_k8s.api_errors import advice, is_transient, status_message

QUOTA = (
    'Operation cannot be fulfilled on resourcequotas "gke-resource-quotas": the object has been '
    "modified; please apply your changes to the latest version and try again"
)
NO_ACCOUNT = 'pods "a" is forbidden: error looking up service account lab/{0}: serviceaccount "{0}" not found'
NO_RIGHT = (
    'pods is forbidden: User "system:serviceaccount:lab:jobs" cannot create resource "pods" in API '
    'group "" in the namespace "lab"'
)


def test_a_status_is_read_and_so_is_a_proxys_page():
    assert status_message('{"kind": "Status", "message": "no", "reason": "Forbidden"}') == (
        "no",
        "Forbidden",
    )
    assert status_message("<html>Bad Gateway</html>\n") == ("<html>Bad Gateway</html>", "")
    assert status_message('["no status"]') == ('["no status"]', "")


@pytest.mark.parametrize(
    "status,message,found",
    [
        (401, "Unauthorized", "log in again"),
        (
            403,
            NO_RIGHT,
            "fiber k8s rbac --namespace lab --service-account jobs | kubectl apply -f -",
        ),
        (403, NO_ACCOUNT.format("fiber"), "fiber k8s rbac --namespace lab | kubectl apply -f -"),
        (403, NO_ACCOUNT.format("jobs"), "--namespace lab --service-account jobs | kubectl"),
        (403, NO_ACCOUNT.format("default"), "kubectl get sa -n lab"),
        (403, 'violates PodSecurity "restricted:latest": …', "FIBER_K8S_SECURITY=restricted"),
    ],
)
def test_advice_is_part_of_the_error(status, message, found):
    assert found in advice(status, message)


@pytest.mark.parametrize(
    "status,message",
    [(403, "exceeded quota: few, requested: pods=1"), (422, "is invalid"), (404, "")],
)
def test_the_clusters_message_alone_where_it_is_sufficient(status, message):
    assert advice(status, message) == ""


@pytest.mark.parametrize(
    "status,message,expected",
    [
        (409, QUOTA, True),
        (409, QUOTA.replace("resourcequotas", "clusterresourcequotas.quota.openshift.io"), True),
        (409, 'pods "a" already exists', False),
        (403, NO_ACCOUNT.format("default"), True),
        (403, NO_ACCOUNT.format("jobs"), False),
        (500, "failed calling webhook: context deadline exceeded", True),
        (503, "the server is currently unable to handle the request", True),
        (422, "is invalid", False),
    ],
)
def test_transient_errors_are_distinguished_from_final_ones(status, message, expected):
    assert is_transient(status, message) is expected
