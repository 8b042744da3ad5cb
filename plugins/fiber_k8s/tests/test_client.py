"""The client: choice of the cluster and user, retries, and errors."""

import base64
import json

import pytest
import yaml

from cluster import Cluster
from fiber.exceptions import BackendUnavailableError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.flow_control import RateLimiter, backoff
from fiber_k8s.in_pod import pod_evidence, read_own_pod
from fiber_k8s.timing import K8sTiming


@pytest.fixture
def ask(hollow, tmp_path):
    """Makes clients by kubeconfigs; all are closed."""
    made = []

    def make(change=lambda found: None, **settings):
        found = yaml.safe_load(hollow.kubeconfig.read_text())
        change(found)
        path = tmp_path / f"config-{len(made)}"
        path.write_text(yaml.safe_dump(found))
        made.append(Client(K8sConfig(kubeconfig=str(path), **settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def add_context(found):
    context = {"cluster": "emulated", "user": "admin", "namespace": "research"}
    found["contexts"].append({"name": "other", "context": context})


def test_the_namespace_is_the_contexts_unless_it_is_set(ask):
    assert ask(add_context).namespace == "default"
    assert ask(add_context, context="other").namespace == "research"
    assert ask(add_context, context="other", namespace="mine").namespace == "mine"


def test_a_missing_context_is_reported_with_the_command_that_lists_them(ask):
    with pytest.raises(BackendUnavailableError, match="kubectl config get-contexts"):
        ask(context="none").pods("a=b")


def test_no_kubeconfig_is_reported_with_what_to_set(tmp_path):
    with pytest.raises(BackendUnavailableError, match="FIBER_K8S_KUBECONFIG"):
        Client(K8sConfig(kubeconfig=str(tmp_path / "none"))).pods("a=b")


def logging_in_by(script):
    """Has a kubeconfig's user log in by a plugin."""
    script.chmod(0o700)
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(script),
        "interactiveMode": "Never",
    }

    def change(found):
        found["users"][0]["user"] = {"exec": plugin}

    return change


def test_an_exec_plugin_gives_the_token(ask, hollow, tmp_path):
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": hollow.token("admin")},
    }
    script = tmp_path / "login"
    script.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    assert ask(logging_in_by(script)).pods("a=b") == []


def test_a_plugin_is_asked_again_once_its_token_is_not_taken_any_more(ask, hollow, tmp_path):
    """The plugin gave no expiration time."""
    token = tmp_path / "token"
    token.write_text("is not taken")
    script = tmp_path / "login"
    kind = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"'
    script.write_text(f"""#!/bin/sh
printf '{kind}, "status": {{"token": "%s"}}}}' "$(cat {token})"
echo '{hollow.token("admin")}' > {token}
""")
    client = ask(logging_in_by(script))
    client.timing = K8sTiming(login=0.0)
    assert client.pods("a=b") == []


def test_a_certificate_without_a_user_is_refused(ask):
    def change(found):
        del found["clusters"][0]["cluster"]["certificate-authority"]

    with pytest.raises(BackendUnavailableError, match="certificate"):
        ask(change).call("POST", "/api/v1/namespaces", "try")


def test_certificates_without_key_identifiers_are_taken_as_other_clients_take_them(
    monkeypatch, tmp_path
):
    import ssl

    import urllib3

    def strict(*args, **options):
        # what newer Pythons do by themselves
        context = urllib3.util.create_urllib3_context(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr("urllib3.connection.create_urllib3_context", strict)
    with Cluster.start(identified=False) as cluster:
        client = Client(K8sConfig(kubeconfig=str(cluster.kubeconfig)))
        assert client.pods("a=b") == []
        client.close()


@pytest.mark.parametrize("exempt,is_direct", [("cluster.lab", True), ("other.lab", False)])
def test_streams_pass_proxies_as_other_requests_do(monkeypatch, exempt, is_direct):
    import websocket
    from kubernetes.client import Configuration
    from websocket._url import get_proxy_info

    from fiber_k8s import websocket_client

    asked = []
    monkeypatch.setattr(
        websocket.WebSocket, "connect", lambda self, url, **told: asked.append(told)
    )
    configuration = Configuration(host="https://api.cluster.lab:6443")
    configuration.proxy, configuration.no_proxy = "http://proxy.lab:3128", exempt
    websocket_client._connect(
        configuration, "wss://api.cluster.lab:6443/exec", [], ["v5.channel.k8s.io"], 1.0
    )
    (told,) = asked
    host, port = told["http_proxy_host"], told["http_proxy_port"]
    no_proxy = told["http_no_proxy"]
    found = get_proxy_info("api.cluster.lab", True, host, port, no_proxy=no_proxy)
    assert found[:2] == ((None, 0) if is_direct else ("proxy.lab", 3128))


def test_wrong_credentials_are_reported_as_such(ask):
    def change(found):
        found["users"][0]["user"] = {"token": "nobody issued it"}

    with pytest.raises(ApiError, match="Unauthorized.*log in again") as failure:
        ask(change).pods("a=b")
    assert failure.value.status == 401


def test_calls_are_counted_by_kind(ask):
    client = ask()
    client.pods("a=b")
    client.delete("pods", "none")
    assert client.calls == 2
    assert client.calls_by_kind == {"GET pods": 1, "DELETE pods": 1}


def test_the_clusters_clock_is_known(ask):
    import time

    client = ask()
    client.pods("a=b")
    assert abs(client.now() - time.time()) < 3


class TestInside:
    def test_a_pod_knows_itself_by_its_token(self, tmp_path):
        claims = {"kubernetes.io": {"pod": {"name": "trainer-0", "uid": "u1"}}}
        middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        (tmp_path / "token").write_text(f"a.{middle}.c")
        (tmp_path / "namespace").write_text("research\n")
        found = read_own_pod(tmp_path)
        assert (found.namespace, found.name, found.uid) == ("research", "trainer-0", "u1")

    @pytest.mark.parametrize(
        "root",
        [
            "/var/lib/kubelet/pods/2f1c0a3b-1111-2222-3333-444455556666/containers/main/6d5f1a3b",
            # a disk of its own, a volume of another engine (kind), a sub-volume
            "/kubelet/pods/2f1c0a3b-1111-2222-3333-444455556666/containers/main/6d5f1a3b",
            "/volumes/ab12/_data/lib/kubelet/pods/2f1c/containers/main/6d5f1a3b",
            "/@/var/lib/k0s/kubelet/pods/2f1c/containers/main/0",
        ],
    )
    def test_its_container_is_found_by_its_mounts(self, tmp_path, root):
        (tmp_path / "token").write_text("opaque")
        (tmp_path / "namespace").write_text("research\n")
        mounts = tmp_path / "mountinfo"
        mounts.write_text(
            "1190 1180 0:52 / / rw,relatime - overlay overlay rw\n"
            "1200 1190 8:1 /var/lib/kubelet/pods/2f1c/etc-hosts /etc/hosts rw - ext4 /dev/sda rw\n"
            f"1201 1190 8:1 {root} /dev/termination-log rw,relatime - ext4 /dev/sda1 rw\n"
        )
        assert read_own_pod(tmp_path, mounts).container == "main"
        mounts.write_text("1190 1180 0:52 / / rw,relatime - overlay overlay rw\n")
        read_own_pod.cache_clear()
        assert read_own_pod(tmp_path, mounts).container is None

    def test_it_takes_a_service_and_a_token(self, tmp_path):
        environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        assert pod_evidence(environ, tmp_path) is None
        (tmp_path / "token").write_text("x")
        assert "KUBERNETES_SERVICE_HOST" in pod_evidence(environ, tmp_path)
        assert pod_evidence({}, tmp_path) is None


class TestPacing:
    def test_waits_grow_and_end(self):
        waits = list(backoff(1.0, 5.0, 5))
        assert len(waits) == 5
        for wait, about in zip(waits, (1, 2, 4, 5, 5), strict=True):
            assert 0.8 * about <= wait <= 1.2 * about

    def test_a_burst_passes_and_the_rest_is_spread(self):
        slept = []
        limiter = RateLimiter(3, 10.0, clock=lambda: 0.0, sleep=slept.append)
        for _ in range(5):
            limiter.acquire()
        assert slept == [pytest.approx(0.1), pytest.approx(0.2)]
