"""The Kubernetes backend: each job is a pod of one namespace, created through the API server.

``plugin`` is the entry point; :class:`.backend.K8sBackend` is what the core calls, by the
interface :class:`fiber.abc.Backend`, from any thread. The package calls the core's
``backend_parts`` (feed of statuses, threads, liveness, private bytes) and little of ``_wire``, ``_tunnel``
and ``_agent``; ``images`` uses ``fiber_docker``. Nothing imports the package but its entry point.

What holds:

* A pod's name is a job's id, made here and unique, so that a creation can be retried. Its labels
  and annotations ``fiber/…`` have all that another program knows of the job: run, kind, user,
  arguments.
* Each run has one Lease (``run_objects``), which the program renews. It owns the run's pods and
  Secret, so that Kubernetes' garbage collector deletes them after it; ``sweeping`` deletes the
  Leases of programs that are proven to be dead. Detached jobs have no owner.
* A job's status comes from one watch a run. A final status is published once: as the pod's last
  version has it, or where Fiber gives up (a cancelled creation, a pod that cannot start, a lost
  node).
* Modules marked *pure* (``manifest`` with ``names``; ``status``,
  ``rbac``) make no request and hold no lock: they map objects of the API to values.
* Making a backend makes no request: the client connects on first use, and imports ``kubernetes``
  then.

Threads, ended by :meth:`.backend.K8sBackend.close`: ``fiber-k8s-watch`` (one a run; calls
``lifecycle``), ``fiber-k8s-lease`` (one a run), ``fiber-k8s-timers`` (delayed calls),
``fiber-k8s-streams`` (a reactor for port-forwards) and up to 16 for slow calls (``submission``);
an exec adds ``fiber-stdin``, which reads standard input. Each class guards its own state with one lock or
condition; ``run_objects`` takes ``_renewing`` before ``_lock``. No lock is held during a request,
but for these, whose result all callers need: creating a run's Lease and Secret, renewing it,
finding the own pod, creating a pod group and listing nodes.

By subject: ``submission`` and ``pod_group`` create pods, ``watch`` and ``lifecycle`` follow them; ``client`` and ``connection`` make calls, ``flow_control`` says when;
``websocket_client``, ``pod_exec``, ``port_forward`` and ``file_copy`` use WebSockets; ``in_pod``
and ``address`` know where this process runs; ``images`` and ``registries`` make images, ``doctor`` checks the
cluster, with ``probe`` in a pod. Modules that one other module imports are apart where they have a thread or a protocol of
their own (``watch``, ``port_forward``), need rights that are optional (``capacity``), or are imported only when they are used
(``file_copy``).
"""
