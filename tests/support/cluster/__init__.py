"""An emulated Kubernetes cluster for tests, true to recordings of a real one (v1.36).

::

    from cluster import Act, Cluster

    with Cluster.start(nodes=["n1", "n2"], script=lambda pod: Act(code=0)) as cluster:
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)      # the administrator's
        core = kubernetes.client.CoreV1Api(cluster.client_for("default/worker"))

Each pod is hollow unless a runtime is given: it does what ``script(pod) -> Act`` says (default:
it runs until it is ended, and hears SIGTERM). ``Cluster.start(runtime=...)`` with
``cluster.real.Docker(engine)`` runs each pod's container on dockerd.

Clients: ``url``, ``authority_file``, ``kubeconfig``, ``write_kubeconfig(path, user=, namespace=)``,
``token(user)``, ``client_for(user)``; a user is "admin", "NAMESPACE/SERVICE_ACCOUNT" or a name
without rights. Rights: ``add_account(name, rules)``.

Counting: ``requests`` (list of ``Call``: verb, resource, subresource, namespace, name, user, code,
path, at), ``forget_requests()``.

Objects without a client: ``get(plural, name)``, ``objects(plural)``, ``create(plural, thing)``,
``wait_for(plural, test)``, ``history(plural)``, ``add_namespace``, ``add_quota``, ``add_node``.

Faults of the API: ``outage()`` (a block), ``stop_api``/``start_api``, ``cut_watches``,
``end_watches``, ``expire(resourceVersion)``, ``refuse(code, retry_after=, matching=, times=)``,
``expire_tokens``, ``rotate_tokens``. Of pods: ``delete_pod``, ``evict``, ``kubelet_evict``, ``preempt``, ``oom``,
``end(name, code=)`` and ``say(name, text)`` (hollow ones). Of nodes: ``add_gpus``, ``cordon``,
``uncordon``, ``taint``, ``drain``, ``node_lost``, ``node_silent``, ``node_back``, ``pause_scheduling``,
``resume_scheduling``.

Everything lives in one thread's event loop; all ends with the block.
"""

from __future__ import annotations

from .cluster import Cluster
from .faults import Refusal
from .hollow import Act, Hollow
from .requests import Call

__all__ = ["Act", "Call", "Cluster", "Hollow", "Refusal"]
