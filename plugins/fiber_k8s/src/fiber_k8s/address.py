"""Listen address of a program: the one at which pods of the cluster can dial it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence

from fiber.backend_parts.address import listen_address, outward, source_address, tls
from fiber.exceptions import BackendError
from fiber.model import Interface, ListenAddress
from fiber_k8s.config import K8sConfig
from fiber_k8s.in_pod import JOB_VARIABLE


def is_outside(config: K8sConfig, environ: Mapping[str, str]) -> bool:
    """True where pods cannot dial this program, so that port-forward streams carry connections."""
    return config.address is None and not environ.get("KUBERNETES_SERVICE_HOST")


def choose(
    config: K8sConfig,
    environ: Mapping[str, str],
    interfaces: Sequence[Interface],
    source: Callable[[str, int], str | None] = source_address,
) -> ListenAddress:
    """Return the address to listen on.

    In a pod it is the source address of connections to the cluster's API: pods of a cluster reach
    each other there, however many networks a pod has.

    Args:
        config: settings.
        environ: of this process.
        interfaces: of this host.
        source: returns the source address for a host and a port.

    Raises:
        BackendError: this host has no address; the text says what to set.
    """
    mine = {one.address.partition("%")[0] for one in interfaces if one.is_up}
    if config.address is not None and not (JOB_VARIABLE in environ and config.address not in mine):
        return listen_address(config.address, interfaces)
    server = environ.get("KUBERNETES_SERVICE_HOST")
    if not server:
        return tls("127.0.0.1", routed=True)
    found = source(server, int(environ.get("KUBERNETES_SERVICE_PORT") or 443))
    if found is not None and not ipaddress.ip_address(found).is_loopback:
        return tls(found)
    reachable = outward(interfaces)
    if reachable:
        return tls(reachable[0])
    msg = (
        "this pod has no address that other pods reach "
        f"({', '.join(sorted(mine)) or 'it has none'}); set FIBER_K8S_ADDRESS to one"
    )
    raise BackendError(msg)
