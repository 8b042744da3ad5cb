"""The agent: one process for a user and a host, which runs jobs for programs that connect by ssh.

It is sent to the host as an archive (:mod:`fiber_ssh.exec_channel`) and runs there with Python's
standard library alone, from Python 3.10 on. Processes are started, watched and ended by the core's
job runner (:mod:`fiber._agent.supervisor.runner`), which is in the archive with all that it imports;
what is here is how the agent is started, how programs reach it, and whose the jobs are.

``loader`` receives the archive and reports the host's versions and addresses. ``main`` is then a
session, which copies bytes between its ssh channel and the agent's Unix socket and starts an agent
where none listens; or the agent itself; or the receiver of files. ``agent`` is one thread with one
loop: it serves connections and those that follow output, has the runner start each job, and checks the
leases of ``runs``, which are on disk with their jobs and logs. ``wire`` frames messages and output, ``files``
receives files in a process of its own, ``kernel`` has a clock, ports and marks.

Invariants: the agent is the parent of each job's first process and its jobs die with it; jobs, logs
and exit statuses do not depend on connections; a run's attached jobs are killed once its lease has
expired, which counts from the sending of the last heartbeat that its owner has acknowledged.
"""
