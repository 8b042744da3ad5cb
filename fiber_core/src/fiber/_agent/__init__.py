"""Processes of jobs on one host: forked, watched, ended and reported by a supervisor.

The agent is what stands between a job and the kernel. It runs in two ways: as the **local
supervisor** of a run (:mod:`~fiber._agent.supervisor`, a fork server that serves its master over
inherited sockets), and as the **job supervisor** of one remote job (:mod:`~fiber._agent.job`,
``python -m fiber._agent.job``, often process 1 of a container). Both use the same runner, job
table, output and control groups; so do agents of backends on hosts that need not have Fiber, for
which the runner and all that it imports keep to the standard library.

Invariants:

* A supervisor runs no user code but the imports of ``preload``, before the fork, and messages are
  unpickled into Fiber's own classes alone.
* It forks from a process without threads. The job supervisor starts its threads after its last
  fork.
* Every process has a process group of its own and no terminal; it is killed with its supervisor (``PR_SET_PDEATHSIG`` on
  Linux), and what hangs below it is found and ended by its process group, its control group or as
  an orphan.
* The end of a process is reported once, with its exit code, reason, peak of memory and last lines,
  after all output that it had written.
* Only the proven death of an owner allows removal of what it left
  (:mod:`fiber.backend_parts.liveness`).

Callers: the local backend starts supervisors; ``_launch`` prepares the configuration of job
supervisors and receives their reports; ``_runtime.bootstrap`` is the first code of a forked worker.
The package calls ``_wire`` and ``_tunnel`` for the connection to the parent, and nothing above it.

Modules: ``instructions`` (what a new process gets to know; where it reads that is
:mod:`fiber.backend_parts.private`), ``lease`` (who is silent for too long), ``rundir`` (the run's folder, and
what is left of a process that was killed), ``resources`` (devices), ``supervisor``, ``job``.
"""
