"""MPI on jobs: runs the user's own ``mpirun``, with an agent of Fiber's as its remote shell.

A run has *members*, jobs that are the hosts of mpirun, and a *launcher*, the job that runs mpirun;
each has a member agent. mpirun starts its daemons through what it takes for a remote shell: the
agent program passes host and command to the launcher's socket, and the controller of the run has
the command run by that host's member agent. Nothing needs a login, a key or an open port of sshd.

Invariants:

* No rank begins before all are on the hosts where they belong; mpirun is ended otherwise.
* A run ends with its first failure, and leaves no process on any member.
* Members are dialled before mpirun starts, so a closed network is an error with names and port.
* Settings reach mpirun by its environment; the user's own variables win, except for those that
  name the agent and the host file.

Threads in the process of the run: the main thread is the controller, ``fiber-crew`` threads read
the members' pipes into one queue, and ``fiber-mpirun-input`` reads standard input. On a member:
the main thread carries out requests, ``fiber-command-…`` threads read the output of commands,
``fiber-ranks`` reads reports of ranks, ``fiber-ring-probe`` answers probes, and on the launcher
``fiber-command-socket`` serves agents.

Called by :mod:`fiber.cli`: ``fiber mpirun``, ``fiber ring apply`` and ``fiber rsh``. Calls the
launcher of the runtime for jobs.

* ``arguments``, ``manifest``: the specification of a run, from a command line or a manifest.
* ``run``, ``conductor``, ``vigil``, ``crew``, ``messages``: the controller, with its rank monitor
  and its member agents, and the messages between them.
* ``station``, ``streams``, ``ranks``, ``command_socket``: the member agent, its commands and ranks.
* ``agent``: the program in place of a remote shell.
* ``networks``, ``hosts``, ``implementations``: reachability, host files, settings of each MPI.
"""
