"""MPI on jobs: runs the user's own ``mpirun``, with an agent of Fiber's as its remote shell.

A run is a gang of :mod:`fiber._ring`, with a protocol of its own and one round. It has *members*,
which are the hosts of mpirun, and a *launcher*, which runs mpirun and so leads the round; each is a
member agent. mpirun starts its daemons through what it takes for a remote shell: the agent program
passes host and command to the launcher's socket, and the controller of the run has the command run
by that host's member agent. Nothing needs a login, a key or an open port of sshd.

Invariants:

* No rank begins before all are on the hosts where they belong; mpirun is ended otherwise.
* A run ends with its first failure, and leaves no process on any member.
* Members are dialled before mpirun starts, so a closed network is an error with names and port.
* Settings reach mpirun by its environment; the user's own variables win, except for those that
  name the agent and the host file.

Threads in the process of the run: those of a ring's controller, ``fiber-mpirun-input``, which reads
standard input, and ``fiber-mpirun-signal`` for each signal. On a member: the main thread carries out
requests, ``fiber-command-…`` threads read the output of commands, ``fiber-ranks`` reads reports of
ranks, ``fiber-ring-probe`` answers probes, and on the launcher ``fiber-command-socket`` serves agents.

Called by :mod:`fiber.cli`: ``fiber mpirun``, ``fiber ring apply`` and ``fiber rsh``. Calls the
launcher of the runtime for jobs.

* ``spec``: the specification of a run, from a command line or a manifest.
* ``run``, ``messages``: the gang of a run, what its members are told and say.
* ``member_agent``: the member agent and its commands.
* ``ranks``: host files, when ranks begin, and when mpirun is ended.
* ``agent``: the program in place of a remote shell.
* ``implementations``: settings of each MPI.
"""
