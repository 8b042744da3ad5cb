"""The pod that this program runs in, as the cluster has it."""

from __future__ import annotations

from typing import Any

from fiber.exceptions import SubmitError
from fiber_k8s.address import way_to
from fiber_k8s.client import ApiError, Client

__all__ = ["find_parent"]

#: addresses of nobody (RFC 5737, 3849): a pod may have a way to one kind only
_ANYWHERE = ("192.0.2.1", "2001:db8::1")


def find_parent(client: Client) -> dict[str, Any] | None:
    """The pod of this process; None outside.

    Raises:
        SubmitError: it is in a pod that it cannot read, of which its children would be made.
    """
    inside = client.connection.inside
    if inside is None:
        return None
    base = f"/api/v1/namespaces/{inside.namespace}/pods"
    try:
        return dict(client.call("GET", f"{base}/{inside.pod}", "read the program's own pod"))
    except ApiError as error:
        if error.status != 404:
            raise SubmitError(str(error)) from error
        missing = str(error)
    # a host name that was set is not the pod's
    address = next(filter(None, (way_to(host, 9) for host in _ANYWHERE)), None)
    query = {"fieldSelector": f"status.podIP={address}"}
    answer = client.call("GET", base, "find the program's own pod", query=query)
    found: list[dict[str, Any]] = answer.get("items") or []
    if len(found) == 1:
        return {"apiVersion": "v1", "kind": "Pod", **found[0]}
    msg = (
        f"the program's own pod is not found: {missing}; pods with address {address}: {len(found)}"
    )
    raise SubmitError(msg)
