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
parts); no threads of its own. Callers: every public module, ``_objects``, ``_workers`` and ``_ring``; it
calls everything from ``_wire`` to ``_launch``.

============= =========================================================================
runtime       the runtime of this process
start         starts the supervisor early, before the program has read its settings
bootstrap     first code of a new process
inspection    what commands see of a process: the socket for the run's status, the file for stacks
============= =========================================================================
"""
