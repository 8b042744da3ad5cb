"""A fake of a Kubernetes cluster for tests: the endpoints that the plugin calls, and faults.

::

    from cluster import Act, Cluster

    with Cluster.start(nodes=["n1", "n2"], script=lambda pod: Act(code=0)) as cluster:
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)      # the administrator's

Each pod is hollow unless a runtime is given: it does what ``script(pod) -> Act`` says (default:
it runs until it is ended, and hears SIGTERM). ``Cluster.start(runtime=...)`` with
``cluster.real.Docker(engine)`` runs each pod's container on dockerd.

It keeps what it is given: it knows no schema, quota or policy of pods. What a real server refuses
is refused by ``refuse(code, message=...)`` and ``refuse_pods(message)``, with a recorded answer.

Everything lives in one thread's event loop; all ends with the block.
"""

from .cluster import Cluster
from .hollow import Act

__all__ = ["Act", "Cluster"]
