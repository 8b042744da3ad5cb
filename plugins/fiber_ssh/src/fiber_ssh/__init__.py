"""The ssh backend: jobs are processes on machines that one reaches by ssh.

One ssh connection a host (paramiko) carries everything: requests to an **agent** on the host,
output of jobs, files, probes, and streams into jobs. The agent (:mod:`fiber_ssh.remote`) is sent
when the connection is made; it starts jobs, keeps their logs and exit statuses, and outlives
connections.

Invariants:

- A request has a number and is sent again after each reconnection until it is answered; the agent
  answers a repeated one as the first. So a drop shorter than the lease changes nothing.
- What is sent to a host is sent in the order in which it was asked for: a ``kill`` never overtakes
  the submission of its job.
- A job has failed once its host was silent for the lease. The agent's own lease ends earlier and
  kills what runs there; a job that is seen again all the same is killed.
- Nothing is known of a host that its key in known_hosts does not prove, and log-in is by key alone.
- Private bytes of a job are in one request to its agent and in no argument, variable or file on
  disk.

Threads: for each host one that connects and reads (``fiber-ssh-HOST``), one that writes while it is
connected, and one that finds routes, sends files and submits jobs (``fiber-ssh-tasks-HOST``); for
each stream into a job two; one for leases (``fiber-ssh-leases``); one that writes jobs' output
(``fiber-output``). Locks: the scheduler's condition (submissions, slots, devices), one a link
(requests), one of the router, held while hosts are probed, and small ones of leases, streams and
output. Callbacks of a link run on its thread.

Called by the core through :class:`fiber.abc.Backend`, the hooks in :mod:`~fiber_ssh.plugin`, and
``fiber doctor``. It calls paramiko, ``fiber.backend_parts`` (status feed) and ``fiber._agent``
(leases, device allocation and probes).

======================================  ====================================================
plugin, config, backend                 hooks and settings; the Backend interface
hosts, host_state                       the user's hosts; the state and silence of each
scheduler, placement                    which job runs where and which wait, queries to all
                                        agents; the choice of a host (pure)
submission, agent_link                  jobs, their statuses from agents' records; requests
                                        and followers of output
routes, streams, address                who dials whom; channels into jobs; listen address
connect, ssh_config                     ssh connections, host keys; ~/.ssh/config (pure)
exec_channel, execution, shell_command  commands on a host and the agent's code, ``Backend.exec``,
                                        quoting (pure)
files                                   transfer of files
checks                                  ``fiber doctor``
remote                                  the agent, which runs on hosts
======================================  ====================================================

Modules that one other module imports are apart where they have a format or protocol of their own
(``ssh_config``, ``files``), or are imported only when they are used (``checks``, ``execution``).
"""
