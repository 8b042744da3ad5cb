"""The client: choice of the cluster and user, retries, and errors."""

import base64
import json
import ssl
from pathlib import Path

import pytest
import urllib3
import websocket
import yaml
from websocket._url import get_proxy_info

from cluster import Cluster
from fiber.exceptions import BackendUnavailableError, UnknownJobError
from fiber_k8s import websocket_client
from fiber_k8s.client import Client
from fiber_k8s.config import K8sConfig, K8sTiming
from fiber_k8s.websocket_client import open_websocket
from making import making


@pytest.fixture
def ask(hollow, tmp_path):
    """Makes clients by kubeconfigs; all are closed."""

    def make(change=lambda found: None, **settings):
        found = yaml.safe_load(hollow.kubeconfig.read_text())
        change(found)
        path = tmp_path / f"config-{len(list(tmp_path.iterdir()))}"
        path.write_text(yaml.safe_dump(found))
        return Client(K8sConfig(kubeconfig=str(path), **settings))

    with making(make, Client.close) as ask:
        yield ask


def test_what_is_missing_is_reported_with_what_to_do(ask, tmp_path):
    with pytest.raises(BackendUnavailableError, match="kubectl config get-contexts"):
        ask(context="none").pods("a=b")
    with pytest.raises(BackendUnavailableError, match="FIBER_K8S_KUBECONFIG"):
        Client(K8sConfig(kubeconfig=str(tmp_path / "none"))).pods("a=b")


def test_a_login_plugin_is_asked_again_once_its_token_is_not_taken_any_more(ask, hollow, tmp_path):
    """The plugin gave no expiration time."""
    kind = '"apiVersion": "client.authentication.k8s.io/v1"'
    token, script = tmp_path / "token", tmp_path / "login"
    token.write_text("is not taken")
    script.write_text(f"""#!/bin/sh
printf '{{{kind}, "kind": "ExecCredential", "status": {{"token": "%s"}}}}' "$(cat {token})"
echo '{hollow.token("admin")}' > {token}
""")
    script.chmod(0o700)

    def change(found):
        plugin = json.loads(f"{{{kind}}}")
        plugin |= {"command": str(script), "interactiveMode": "Never"}
        found["users"][0]["user"] = {"exec": plugin}

    client = ask(change)
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


def test_certificates_are_read_once_as_the_official_clients_files_of_them_may_go(ask):
    def change(found):
        cluster = found["clusters"][0]["cluster"]
        authority = Path(cluster.pop("certificate-authority")).read_bytes()
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()

    client = ask(change)
    assert client.pods("a=b") == []
    Path(client.connection.configuration.ssl_ca_cert).unlink()
    assert client.pods("a=b") == []
    # it is the cluster that refuses
    with pytest.raises(UnknownJobError, match="no job nothing"):
        open_websocket(client, "nothing", "exec", [("command", "true")], ["v5.channel.k8s.io"])


@pytest.mark.parametrize("exempt,is_direct", [("cluster.lab", True), ("other.lab", False)])
def test_streams_pass_proxies_as_other_requests_do(monkeypatch, ask, exempt, is_direct):
    asked = []
    monkeypatch.setattr(
        websocket.WebSocket, "connect", lambda self, url, **told: asked.append(told)
    )
    connection = ask().connection
    connection.configuration.host = "https://api.cluster.lab:6443"
    connection.configuration.proxy = "http://proxy.lab:3128"
    connection.configuration.no_proxy = exempt
    websocket_client._connect(
        connection, "wss://api.cluster.lab:6443/exec", [], ["v5.channel.k8s.io"], 1.0
    )
    (told,) = asked
    host, port = told["http_proxy_host"], told["http_proxy_port"]
    no_proxy = told["http_no_proxy"]
    found = get_proxy_info("api.cluster.lab", True, host, port, no_proxy=no_proxy)
    assert found[:2] == ((None, 0) if is_direct else ("proxy.lab", 3128))
