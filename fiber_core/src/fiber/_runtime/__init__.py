"""State of one process of a run: made on first use, closed in order.

:class:`~fiber._runtime.runtime.Runtime` owns what a process has at most one of: settings, plugins,
backend, reactor, endpoint, clients, launcher and router. ``runtime.current()`` makes the master's
on first use; ``bootstrap`` makes that of a process which Fiber started.

Invariants:

* There is one runtime a process, and none in a process that the user's own ``fork()`` made.
* Parts are made on first use, and closed in the reverse order: what
  :meth:`~fiber._runtime.runtime.Runtime.own` was given last, then the backend (which ends the
  jobs), launcher, clients, router, endpoint and reactor. An unreachable platform, or a part that
  fails to close, keeps no other part open.
* The run's folder is removed last, by the master, or by its supervisor where the master has died.

Locks: one re-entrant lock for the module (which runtime is current) and one a runtime (making its
parts); no threads of its own. Callers: every public module, ``_objects``, ``_workers`` and ``_ring``; it calls everything from ``_wire`` to
``_launch``.

Modules: ``runtime``; ``start`` (a supervisor is started before the program has found out its
settings); ``bootstrap`` (the first code of a worker); ``functions`` (``fiber.cpu_count`` and
``fiber.get_backend``); ``status_socket`` (where other commands ask how the run goes); ``stacks`` (the file into which a process writes where it is).
"""
