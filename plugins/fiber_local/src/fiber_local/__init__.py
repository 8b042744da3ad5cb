"""The local backend: jobs are processes of this machine, forked by a supervisor.

``plugin`` is the entry point; :class:`.backend.LocalBackend` is what the core calls, by the
interface :class:`fiber.abc.Backend`, from any thread. It is the default backend. The package calls
the core's agent (``fiber._agent``: supervisors, their client, journals, run directories, control
groups, device probes) and ``backend_parts.liveness``; nothing imports it but its entry point.

What holds:

* One supervisor, a process of its own, serves all jobs of a run; ``supervisors`` starts it with
  the first job, again after it was lost, and ends it at close. A lost supervisor's jobs have ended
  with it.
* A detached job has a supervisor of its own, which no process owns and which ends after its job.
* Supervisors write each job's start and end into the journal of the run directory. Jobs that this
  backend submitted are known by its :class:`~fiber.backend_parts.feed.Feed`, all others by journals
  (``host_jobs``): those are signalled directly, and only where pid and start time
  match.
* A final status is published once; later changes of that job are dropped.

Threads: the readers of supervisors' connections (the core's) call ``Feed.publish``; one
``fiber-end-<job>`` enforces the grace period of each job of another process that is terminated,
and is joined at close. Journals of others are polled by the reader of an event stream, ten times a
second. Each class guards its own state with one lock or condition;
:class:`.supervisors.Supervisors` holds its lock while it starts a supervisor, so that concurrent
jobs share it.

* ``config``, ``checks``: settings and durations; ``fiber doctor local``, imported when it is used.
"""
