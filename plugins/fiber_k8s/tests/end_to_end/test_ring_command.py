"""``fiber ring run`` in pods: it goes on alone, and leaves none."""

import pytest

from ring_command import check_failed_rank, check_lifecycle, ring_command

pytestmark = pytest.mark.timeout(300)

NODES = ["one", "two"]


@pytest.fixture
def ring(address, kube, engine, tmp_path):
    """The command outside of the cluster: pods reach its ring's owner, or do not."""
    settings = {"FIBER_BACKEND": "k8s", "FIBER_IMAGE": engine.image}
    if address is not None:
        settings["FIBER_K8S_ADDRESS"] = address
    with ring_command(tmp_path, KUBECONFIG=str(kube.kubeconfig), **settings) as command:
        yield command
    kube.wait_until_gone()


def test_it_is_suspended_resumed_and_deleted_from_other_shells(kube, ring):
    check_lifecycle(
        ring,
        "k8s",
        are_there=lambda: len(kube.objects("pods")) == 2,
        are_gone=lambda: kube.wait_for("pods", lambda pods: not pods),
    )


def test_a_rank_that_fails_ends_it_with_its_code(ring):
    check_failed_rank(ring)
