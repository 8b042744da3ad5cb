"""Connection to the cluster: kubeconfig or service account, read by the official client."""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
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


@attrs.frozen(kw_only=True)
class Kubeconfig:
    """The kubeconfig files as kubectl reads them, and what they say of the context in use."""

    #: the files, as in ``KUBECONFIG``, whether they exist or not
    files: str
    #: name of the context; empty where there is none
    context: str
    #: its namespace
    namespace: str
    #: name of its cluster
    cluster: str
    #: fields of that cluster
    fields: Mapping[str, Any]


def read_kubeconfig(config: K8sConfig) -> Kubeconfig:
    """Read the kubeconfig files; names are empty where there are no files.

    Raises:
        BackendUnavailableError: a file cannot be read, or makes no sense.
    """
    from kubernetes.config.kube_config import KubeConfigMerger

    where = config.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = os.pathsep.join(str(Path(one).expanduser()) for one in where.split(os.pathsep) if one)
    with _explained_errors():
        read = KubeConfigMerger(files)
        # the first file that names one counts, as for kubectl; for the official client the last
        named = (one.get("current-context") for one in read.config_files.values())
        context = str(config.context or next(filter(None, named), ""))
        fields = _fields(read.config, "contexts", context)
        cluster = str(fields.get("cluster") or "")
        return Kubeconfig(
            files=files,
            context=context,
            namespace=str(fields.get("namespace") or "default"),
            cluster=cluster,
            fields=_fields(read.config, "clusters", cluster),
        )


def _fields(content: Any, kind: str, name: str) -> Mapping[str, Any]:
    found = content and content[kind].get_with_name(name, safe=True)
    return (found.value.get(kind.removesuffix("s")) if found else None) or {}


@contextlib.contextmanager
def _explained_errors() -> Iterator[None]:
    """Within, errors about kubeconfigs say what to set."""
    import yaml
    from kubernetes.config import ConfigException

    errors = (ConfigException, OSError, yaml.YAMLError)
    nonsense = (AttributeError, LookupError, TypeError, ValueError)
    try:
        yield
    except (*errors, *nonsense) as error:
        msg = (
            f"no cluster is configured: {error}; name a kubeconfig with KUBECONFIG or "
            f"FIBER_K8S_KUBECONFIG and a context of it with FIBER_K8S_CONTEXT "
            f"(`kubectl config get-contexts` lists them)"
        )
        raise BackendUnavailableError(msg) from error


def _kubeconfig(configuration: Any, config: K8sConfig) -> tuple[str, str]:
    """Load a kubeconfig; return its name for messages, and its namespace."""
    from kubernetes.config import load_kube_config

    read = read_kubeconfig(config)
    with _explained_errors():
        load_kube_config(
            config_file=read.files,
            context=read.context or None,
            client_configuration=configuration,
        )
    return f"context {read.context} of {read.files}", read.namespace
