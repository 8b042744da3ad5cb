"""What the cluster's refusals mean: their words, what mends them, what may be asked again."""

import pytest

from fiber_k8s.refusals import advice, is_passing, words

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
    assert words('{"kind": "Status", "message": "no", "reason": "Forbidden"}') == (
        "no",
        "Forbidden",
    )
    assert words("<html>Bad Gateway</html>\n") == ("<html>Bad Gateway</html>", "")
    assert words('["no status"]') == ('["no status"]', "")


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
def test_what_mends_it_is_told(status, message, found):
    assert found in advice(status, message)


@pytest.mark.parametrize(
    "status,message",
    [(403, "exceeded quota: few, requested: pods=1"), (422, "is invalid"), (404, "")],
)
def test_the_clusters_own_words_are_enough_where_they_say_it_all(status, message):
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
def test_what_may_be_taken_soon_is_told_from_what_never_will(status, message, expected):
    assert is_passing(status, message) is expected
