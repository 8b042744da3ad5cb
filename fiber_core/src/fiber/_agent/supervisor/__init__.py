"""Supervisor: forks and watches the processes of jobs, and runs no user code of its own.

A local supervisor is a single-threaded process without network sockets. It speaks frames of
:mod:`~fiber._agent.supervisor.messages` over stream sockets that its peers inherited from it or
from the process that started it. Holding such a descriptor is the proof of belonging, so nothing
listens and nothing is authenticated.

Its peers are *owners*: the master (owner ``None``), and each process that it forked (job id and
index), which may submit jobs on a channel of its own. A channel reaches the jobs submitted on it
and no others; when its process ends, those jobs are killed. The supervisor ends with its master, on
request, or, where it is detached, after its last job.

Inside there is one thread, one event loop (:class:`~fiber._base.threads.Loop`) and no lock. ``server`` holds the loop together:
``channel`` (frames in and out), ``RequestHandler`` (requests), ``jobs`` (the job table, pure) and
``runner`` (processes, pipes, timers), with ``child`` (fork, and what the child does next),
``output``, ``devices``, ``cgroup``, ``journal``, ``interrupts`` (SIGINT to the program's group) and
``orphans`` (descendants that left their group). Nothing in the loop blocks except a flush at the
end, which is bounded.

In the process that uses a supervisor are ``start`` (starts its interpreter), ``client`` (requests
from any thread; one reader thread a connection, named by its owner), ``inherited`` (the channel of
a forked process) and ``preload`` (requests of the program). The local backend calls these;
:mod:`fiber._agent.job` uses ``runner`` and what is below it.
"""

from fiber._agent.supervisor.inherited import (
    Inheritance,
    claim_channel,
    inherited_channel,
    release_channel,
)

__all__ = ["Inheritance", "claim_channel", "inherited_channel", "release_channel"]
