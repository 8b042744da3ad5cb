"""Settings of the Kubernetes backend, and the durations that it waits for."""

from __future__ import annotations

from typing import Literal

from fiber._base import values
from fiber.backend_parts.containers import named
from fiber.model import Durations


@values.frozen(kw_only=True)
class K8sConfig:
    """Settings of the section ``[k8s]`` and of the variables ``FIBER_K8S_<KEY>``."""

    #: namespace of the pods; else the program's own in a pod, else the context's
    namespace: str | None = values.field(
        default=None, metadata={"option": "--namespace", "help": "namespace of the pods"}
    )
    #: a context of the kubeconfig; else its current one, or the service account in a pod
    context: str | None = values.field(
        default=None,
        metadata={"option": "--context", "help": "context of the kubeconfig", "passed_on": False},
    )
    #: kubeconfig file; else ``KUBECONFIG``, else ``~/.kube/config``
    kubeconfig: str | None = values.field(default=None, metadata={"passed_on": False})
    #: a file with a Pod (YAML or JSON) whose fields are defaults of every pod
    pod_template: str | None = values.field(default=None, metadata={"passed_on": False})
    #: service account of the pods; else that of the program's own pod, else the namespace's default
    service_account: str | None = values.field(
        default=None,
        metadata={
            "option": "--service-account",
            "help": "service account of the pod",
            "commands": ("run", "doctor"),
        },
    )
    #: whether pods of processes get the token of their service account, as programs' pods do; Fiber
    #: needs none there
    worker_token: bool = False
    #: container of the program's own pod that is copied, where it is not found by itself
    container: str | None = values.field(default=None, metadata={"passed_on": False})
    #: address of this pod or host that jobs dial; else it is found
    address: str | None = values.field(default=None, metadata={"passed_on": False})
    #: the Python of the image
    python: str = "python3"
    #: when nodes pull images; else as the program's own pod, else what the cluster does
    pull: Literal["IfNotPresent", "Always", "Never"] | None = None
    #: names of Secrets with credentials of registries
    pull_secrets: tuple[str, ...] = ()
    #: what containers do without, beneath what the pod template says: ``reduced`` for those of
    #: processes (more privileges than they begin with, rare system calls and capabilities),
    #: ``restricted`` for all (what the Pod Security Standard of that name forbids), ``image`` nothing
    security: Literal["reduced", "restricted", "image"] = "reduced"
    #: ``KEY=VALUE``, put on every pod
    labels: tuple[str, ...] = values.field(default=(), validator=named("="))
    #: ``KEY=VALUE``, put on every pod
    annotations: tuple[str, ...] = values.field(default=(), validator=named("="))
    #: ``KEY=VALUE``, of nodes that may run pods
    node_selector: tuple[str, ...] = values.field(default=(), validator=named("="))
    #: priority class of the pods; else that of the program's own pod
    priority_class: str | None = None
    #: whether ``cpu`` and ``memory`` are limits too, or requests alone
    limits: Literal["all", "memory", "none"] = "all"
    #: gang scheduler, which starts the members of a group together
    gang: Literal["none", "kueue", "volcano", "scheduler-plugins"] = "none"
    #: queue of Kueue or Volcano
    queue: str | None = None
    #: grace period: seconds between SIGTERM and SIGKILL of a pod that the cluster evicts
    grace: int = values.field(default=30, validator=values.ge(1))
    #: seconds that a pod which no node can take waits for a node that can
    unschedulable_timeout: float = values.field(default=20.0, validator=values.ge(0))
    #: seconds that a pod whose image cannot be pulled, or whose container cannot be made, waits
    image_timeout: float = values.field(default=60.0, validator=values.ge(0))
    #: True to keep the pods of jobs that failed, for ``kubectl describe``; ``fiber gc`` removes them
    keep_failed: bool = False
    #: pods created in a second at most, once the first hundred are
    create_rate: float = values.field(default=50.0, validator=values.gt(0))
    #: registry that built images are pushed to, HOST/FOLDER; else found by the cluster's name
    registry: str | None = values.field(
        default=None,
        metadata={
            "option": "--docker-registry",
            "help": "registry that a built image is pushed to, HOST/FOLDER",
            "commands": ("run",),
            "passed_on": False,
        },
    )
    #: program that builds images; else the first of these on PATH
    engine: Literal["docker", "podman", "buildah"] | None = values.field(
        default=None, metadata={"passed_on": False}
    )
    #: platform that images are built for, such as linux/amd64; else that of the engine
    platform: str | None = values.field(default=None, metadata={"passed_on": False})


@values.frozen(kw_only=True)
class K8sTiming(Durations):
    """Durations in seconds that the backend waits for, besides the core's."""

    # -- calls of the API server

    #: to connect
    connect: float = 10.0
    #: without an answer, after which a call fails
    answer: float = 30.0
    #: to connect for a stream into a pod, and for the response
    stream_answer: float = 15.0
    #: between two reads of the credentials at least: login plugins are slow
    login: float = 10.0
    #: before the first retry of a call, and before later ones at most
    backoff: float = 0.2
    backoff_most: float = 5.0

    # -- the watch of pods

    #: after which the server ends a stream, so that one which died unseen is opened again
    watch: float = 240.0
    #: without data, after which a stream counts as dead; bookmarks come every minute
    watch_silence: float = 90.0
    #: after which a stream counts as accepted, and backoff begins anew
    watch_accepted: float = 5.0
    #: before the next attempt to open one at most: ends of jobs are reported within two seconds
    #: after an outage, which may take long
    watch_backoff: float = 0.5
    #: for the watch's thread to end
    watch_end: float = 5.0

    # -- pods that start

    #: after a submission, within which the next process is of the same burst
    burst: float = 0.5
    #: for which a list of nodes is reused for pending pods, of which there may be many
    nodes: float = 30.0
    #: that a new node may take
    scale_up: float = 900.0
    #: between two checks whether a node for a pod may come
    scale_up_check: float = 60.0
    #: before the first poll for a container that is not created, and between polls at most
    stuck: float = 15.0
    stuck_most: float = 300.0

    # -- pods that end

    #: between two lists of pods that are being deleted, besides what the watch reports
    deletion_check: float = 1.0
    #: for killed pods to be gone
    deletion: float = 20.0
    #: after a pod's grace period, for its node to confirm its end; the core's own timeout for
    #: unconfirmed ends is longer
    unconfirmed: float = 20.0
    #: for the processes of a pod to be killed from within
    kill: float = 3.0

    # -- streams

    #: without a line, after which a log is opened again, unless the job has ended
    log_silence: float = 30.0
    #: without traffic, after which a ping is sent to a program in a pod
    ping: float = 30.0

    # -- Leases

    #: by which a Lease lasts longer than the core's, after which processes end by themselves
    lease_margin: float = 10.0
    #: before a failed renewal is tried again
    renewal_retry: float = 2.0
    #: after its end, for which a Lease is left in peace: its program may only be slow
    lease_slack: float = 20.0
    #: by which a look may come too late before all is observed anew
    sweep_lateness: float = 2.0
