"""Connection to the cluster: kubeconfig or service account, read by the official client."""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from pathlib import Path
from typing import Any

import attrs

from fiber.exceptions import BackendUnavailableError
from fiber_k8s.config import K8sConfig, K8sTiming
from fiber_k8s.in_pod import OwnPod, pod_evidence, read_own_pod

#: connections in the pool; more concurrent calls wait for one
_CONNECTIONS = 32


@attrs.define(eq=False)
class Connection:
    """The address, credentials and connection pool of one cluster."""

    #: the official client's ``Configuration``
    configuration: Any
    #: urllib3's pool manager, with the configuration's certificates, proxies and keep-alive
    pool: Any
    #: URL of the API server, without a slash at its end
    host: str
    #: namespace of the pods
    namespace: str
    #: the pod that this process runs in; None outside
    own_pod: OwnPod | None
    #: how the configuration is named in messages
    origin: str
    #: seconds to connect
    connect_timeout: float
    #: TLS of WebSockets; certificates are read once, since the official client has those of a
    #: kubeconfig in the temporary folder, which is cleaned now and then
    websocket_tls: ssl.SSLContext = attrs.field(repr=False)
    _turn: threading.Lock = attrs.field(factory=threading.Lock, repr=False)

    def headers(self) -> dict[str, str]:
        """Credentials; tokens that rotate are read again by the configuration itself."""
        with self._turn:
            # reading a token again is nothing that two threads may do at once
            settings = self.configuration.auth_settings().values()
        return {
            one["key"]: one["value"] for one in settings if one["in"] == "header" and one["value"]
        }

    def request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        timeout: float | None,
    ) -> Any:
        """Make one request; return urllib3's response, whose body is not read."""
        import urllib3

        return self.pool.request(
            method,
            url,
            headers=headers,
            body=body,
            timeout=urllib3.Timeout(connect=self.connect_timeout, read=timeout),
            retries=False,
            preload_content=False,
        )

    def close(self) -> None:
        """Close the connections of the pool."""
        self.pool.clear()


def connect(config: K8sConfig, timing: K8sTiming = K8sTiming()) -> Connection:
    """Read the configuration; no request is made.

    Raises:
        BackendUnavailableError: there is none, or it makes no sense.
    """
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject

    own_pod = read_own_pod() if pod_evidence(os.environ) else None
    configuration = Configuration()
    configuration.connection_pool_maxsize = _CONNECTIONS
    explicit = config.context or config.kubeconfig
    if own_pod is not None and not explicit:
        origin, found = "the pod's service account", own_pod.namespace
        _in_cluster(configuration)
    else:
        origin, found = _kubeconfig(configuration, config)
    pool = RESTClientObject(configuration).pool_manager
    try:
        # in place of files, which urllib3 would read for each connection, while others use the context
        for name in ("ca_certs", "ca_cert_data", "cert_file", "key_file"):
            pool.connection_pool_kw.pop(name, None)
        pool.connection_pool_kw["ssl_context"] = _tls_context(configuration)
        websocket_tls = _tls_context(configuration)
    except OSError as error:
        msg = f"the certificates of {origin} cannot be used: {error}"
        raise BackendUnavailableError(msg) from error
    return Connection(
        configuration=configuration,
        pool=pool,
        host=str(configuration.host).rstrip("/"),
        namespace=config.namespace or found,
        own_pod=own_pod,
        origin=origin,
        connect_timeout=timing.connect,
        websocket_tls=websocket_tls,
    )


def _tls_context(configuration: Any) -> ssl.SSLContext:
    """TLS with a cluster, with the checks that Kubernetes' own clients make.

    Since Python 3.13 certificates are refused that lack key identifiers, as those of Amazon's clusters
    and of others do.

    Args:
        configuration: the official client's; the files that it names are read.

    Raises:
        OSError: one cannot be read, or makes no sense.
    """
    from urllib3.util import create_urllib3_context

    verify = bool(configuration.verify_ssl)
    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED if verify else ssl.CERT_NONE)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = verify and configuration.assert_hostname is not False
    # not every version of the client that is taken has the latter
    file, data = configuration.ssl_ca_cert, getattr(configuration, "ca_cert_data", None)
    if file or data:
        context.load_verify_locations(cafile=file, cadata=data)
    elif verify:
        context.load_default_certs()
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _in_cluster(configuration: Any) -> None:
    from kubernetes.config import ConfigException, load_incluster_config

    try:
        load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        msg = (
            f"this pod's service account cannot be used: {error}; see automountServiceAccountToken, "
            "and in the pod of a Process or worker the setting worker_token (FIBER_K8S_WORKER_TOKEN)"
        )
        raise BackendUnavailableError(msg) from error


def kubeconfig_files(config: K8sConfig) -> list[Path]:
    """Return the kubeconfig files that are read, whether they exist or not."""
    where = config.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    return [Path(one).expanduser() for one in where.split(os.pathsep) if one]


def _kubeconfig(configuration: Any, config: K8sConfig) -> tuple[str, str]:
    """Load a kubeconfig; return its name for messages, and its namespace."""
    from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config

    named = os.pathsep.join(map(str, kubeconfig_files(config)))
    try:
        load_kube_config(
            config_file=named, context=config.context, client_configuration=configuration
        )
        contexts, current = list_kube_config_contexts(config_file=named)
    except (ConfigException, OSError, TypeError, ValueError, KeyError) as error:
        msg = (
            f"no cluster is configured: {error}; name a kubeconfig with KUBECONFIG or "
            f"FIBER_K8S_KUBECONFIG and a context of it with FIBER_K8S_CONTEXT "
            f"(`kubectl config get-contexts` lists them)"
        )
        raise BackendUnavailableError(msg) from error
    if config.context is not None:
        current = next((one for one in contexts if one["name"] == config.context), current)
    namespace = "default"
    with contextlib.suppress(KeyError, TypeError):
        namespace = current["context"]["namespace"] or "default"
    return f"context {current['name']} of {named}", str(namespace)
