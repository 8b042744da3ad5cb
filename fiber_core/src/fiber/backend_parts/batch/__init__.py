"""Parts for backends of batch systems: Slurm, PBS, LSF, HTCondor and their like.

Such a system has a queue, commands, and nodes that share a file system with the machine where jobs are
submitted. It tells nobody of events, it is shared by hundreds of users, and jobs may wait for hours. What
follows from that is here; what is left to a plugin is a :class:`~.system.BatchSystem`: how jobs are submitted,
signalled and asked for, in the system's own words.

* ``system``: :class:`~.system.BatchSystem` and the values it speaks in (:class:`~.system.Batch`,
  :class:`~.system.Row`), and the text of a job script.
* ``config``, ``names``: settings that all such plugins have; names of jobs in the queue.
* ``backend``: :class:`~.backend.BatchBackend`, a :class:`fiber.abc.Backend` made of the others.
* ``poller``: :class:`~.poller.Poller`, one question for all jobs at a bounded pace.
* ``folder``: :class:`~.folder.RunFolder`, the files of a run: private bytes, output, marks of
  starts and ends.
* ``node``: program that runs a job on its node and writes the marks.
* ``streams``: :class:`~.streams.Streams`, for jobs that cannot dial their program.
* ``status``: what a job's row, marks and orders come to; pure.
* ``guard``: process that outlives a program that is killed, and empties the queue.

Invariants:

- The system is asked for all jobs in one question, at most once a second, once in three where nothing is expected.
  Marks are files: looking at them asks nobody.
- A job runs once its mark of the start is there, not when the system gave it a node. Its exit code is
  the mark's. Why it ended is the system's to say where a signal ended it that this program did not send.
- Private bytes are in a file of mode 0600 in a folder of mode 0700, and nowhere else.
- Whatever waits in the queue when the program is killed leaves it within seconds.
"""
