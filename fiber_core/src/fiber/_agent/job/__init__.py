"""Supervisor of one remote job, ``python -m fiber._agent.job``, and the program that starts it.

It reads a :class:`~fiber._agent.job.config.SupervisorConfig`, forks all processes of the job, dials
the parent, and lets the processes begin when the parent has accepted it
(:class:`~fiber._agent.job.server.StartBarrier`). From then on it reports their statuses and output
to the parent, carries out the parent's signals, and ends the job when its lease on the parent runs
out. It ends with the exit code of the first process.

Invariants:

* All forks happen before the first thread and before any socket but the one at which streams into
  the job are waited for.
* The main thread runs the event loop: it reaps, passes signals on and moves output, and never waits
  for the network. The thread ``fiber-parent-link`` owns the connection. Between them are two deques
  and two pipes that wake the other side; a lock guards the queue of output
  (:class:`~.parent_link.OutputForwarder`). Where streams come into the job there is the
  reactor of :mod:`fiber._tunnel.server` besides.
* The last status is sent until the parent acknowledges it, or its connection or lease is gone.
* SIGTERM from the platform takes the job's place away: where the parent can have the processes
  exit, they get SIGTERM only shortly before the platform's SIGKILL
  (:class:`~fiber._agent.job.server.Drain`).

The parent's half is :mod:`fiber._launch.remote_monitor`. Modules: ``server`` (from configuration to
the forked children, the supervisor, and the job's private folder), ``parent_link``, ``config``.
"""
