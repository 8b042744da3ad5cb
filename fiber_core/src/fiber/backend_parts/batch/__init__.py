"""Parts for backends of batch systems: Slurm, PBS, LSF, HTCondor and similar ones.

Such a system has a queue, commands, and nodes that share a file system with the machine on which jobs are
submitted. It sends no events, it is shared by hundreds of users, and jobs may wait for hours. This package
deals with all that. A plugin adds a :class:`~.system.BatchSystem`, which submits, signals and lists jobs with the
system's own commands.

* ``system``: interface :class:`~.system.BatchSystem` and its values (:class:`~.system.Batch`,
  :class:`~.system.Row`), and the text of a job script.
* ``config``, ``names``: settings that all such plugins have; names of jobs in the queue.
* ``backend``: :class:`~.backend.BatchBackend`, a :class:`fiber.abc.Backend` made of the others.
* ``poller``: :class:`~.poller.Poller`, one query for all jobs at a bounded rate.
* ``folder``: :class:`~.folder.RunFolder`, the files of a run: private bytes, output, marks of
  starts and ends.
* ``node``: program that runs a job on its node and writes the marks.
* ``streams``: :class:`~.streams.Streams`, for jobs that cannot connect to their program.
* ``status``: status of a job, from its row in the queue, its marks and what it was told; pure.
* ``guard``: process that outlives a program that is killed, and cancels its jobs.

Invariants:

- One query asks for all jobs, at most once a second, or once in three seconds while nothing is expected.
  Marks are files, so reading them costs the system nothing.
- A job is running once its mark of the start exists, not when the system has given it a node. Its exit code
  is that in the mark of its end. If a signal ended it that this program did not send, the system gives the reason.
- Private bytes are in a file of mode 0600 in a folder of mode 0700, and nowhere else.
- Jobs that wait in the queue when the program is killed leave it within seconds.
"""
