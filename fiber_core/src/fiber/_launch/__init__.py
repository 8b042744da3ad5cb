"""Starting jobs, as seen from the process that starts them: parent's side of every child.

:class:`~fiber._launch.launcher.Launcher` turns a process object into a
:class:`~fiber.model.JobSpec`, submits it to the backend, gives the new process its pickled object
with the job's instructions or when it dials, and follows it to its end. :class:`~fiber._launch.child.Child` is the handle that
users wait on (``multiprocessing`` calls it a Popen). Where the backend does not fork itself,
:class:`~fiber._launch.remote_monitor.RemoteJobMonitor` talks to the job's supervisor, keeps its
lease, prints its output, serves the program's code and submits jobs of jobs.

Invariants:

* Statuses of one job arrive in order, its end once; what the backend's stream reports
  before ``submit()`` has returned is kept and delivered first.
* Every wait for a child ends: a platform that confirms nothing is given up after
  ``Timing.unconfirmed``.
* The supervisor's report counts for how processes ended, the platform's for how the job ended
  (``status_merge``, pure).
* No lock is held while user code, plugins or a platform are called.

Threads: ``fiber-events`` reads the backend's stream; the reactor's handler thread delivers messages
of children and runs timers; ``fiber-output-printer`` writes their output to this process's own;
``fiber-code-server`` answers for modules and files; short-lived ``fiber-fence`` and
``fiber-submit-proxy`` threads make calls of a platform that may take long, and ``fiber-will`` those of
processes that may be gone. ``Launcher``,
``RemoteJobMonitor``, ``SubmitProxy``, ``Router``, ``CodeServer`` and, in the child,
``ProxyBackend`` have a lock each, ``Child`` and ``OutputPrinter`` a condition.

Callers: ``process.Process``, ``_workers`` and ``_ring`` launch through ``Launcher``; ``_runtime``
owns launcher and router. The package sees the runtime above it only as the protocol in ``context``.
In the child's process run ``code.CodeFinder``, ``module_server.ParentFinder`` and
``submit_proxy.ProxyBackend``.

Modules: ``launcher``, ``child``, ``remote_monitor``, ``status_merge``, ``submit_proxy``, ``wills``
(where notes of killed children go), ``router`` (which address or tunnel reaches a process), ``code`` (the program's code
on other hosts), ``module_server`` (modules that a child on this host cannot find), ``preparation``
(main module, paths and environment of children), ``context``.
"""
