"""The kit on a real cluster: ``KUBECONFIG=… FIBER_IMAGE=… tox -e k8s-live``.

The image needs this checkout's Fiber and Python, and the cluster's nodes must be able to pull it; with
kind: ``kind load docker-image NAME``. ``FIBER_K8S_…`` sets the rest; ``LIVE_CLAIM`` names a claim.
"""

import os

import attrs
import pytest

from fiber.exceptions import BackendError
from fiber.model import Volume
from fiber.testing import BackendConformance
from fiber_k8s.backend import K8sBackend
from fiber_k8s.config import K8sConfig

IMAGE = os.environ.get("FIBER_IMAGE", "")
LIVE = os.environ.get("FIBER_K8S_LIVE", "") not in {"", "0"}


@pytest.mark.skipif(not LIVE, reason="FIBER_K8S_LIVE is not set: no real cluster is used")
@pytest.mark.timeout(900)
class TestLive(BackendConformance):
    python = "python3"
    image = IMAGE
    # nodes pull the image first, and a busy cluster takes its time
    patience = 300.0
    program_patience = 600.0
    many = 16

    @pytest.fixture
    def backend(self, reopen, context):
        backend = reopen(context)
        yield backend
        backend.close()

    @pytest.fixture
    def reopen(self):
        config = K8sConfig(
            namespace=os.environ.get("FIBER_K8S_NAMESPACE"),
            context=os.environ.get("FIBER_K8S_CONTEXT"),
            service_account=os.environ.get("FIBER_K8S_SERVICE_ACCOUNT"),
        )
        return lambda context: K8sBackend(attrs.evolve(context, config=config, image=IMAGE))

    @pytest.fixture
    def settings(self):
        return {key: text for key, text in os.environ.items() if key.startswith("FIBER_")}

    @pytest.fixture
    def image_context(self, tmp_path):
        if not os.environ.get("FIBER_K8S_REGISTRY"):
            pytest.skip("FIBER_K8S_REGISTRY names no registry to push to")
        (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\n")
        return str(tmp_path)

    @pytest.mark.xfail(raises=BackendError, reason="Kubernetes 1.30 tells of the end of an input")
    def test_exec_reads_what_it_is_given(self, kit, tmp_path):
        super().test_exec_reads_what_it_is_given(kit, tmp_path)

    @pytest.fixture
    def volume(self):
        if "LIVE_CLAIM" not in os.environ:
            pytest.skip("LIVE_CLAIM names no claim")
        return Volume(source=os.environ["LIVE_CLAIM"], path="/persistent")
