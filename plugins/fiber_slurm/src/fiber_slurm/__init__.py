"""The Slurm backend: jobs are batch jobs of a cluster, or steps of an allocation that is there.

Nearly everything is :mod:`fiber.backend_parts.batch`'s: the run's folder on the shared file system, the
poller, the marks of starts and ends, the guard. Here are Slurm's own words.

Invariants:

- ``squeue`` is run once for all jobs, at most once a second, by a format of our own. Its option
  ``--json`` is not used: until 23.02 it ignores the options that select jobs.
- A job's exit code is Fiber's mark. Slurm's is used where there is none; a signal that ends the
  script is told there as ``JobLaunchFailure``, whose words are left out.
- SIGKILL is ``scancel --batch``: a plain ``scancel`` sends SIGTERM first and waits for ``KillWait``,
  also with ``--signal=KILL``. Only a job that is there after that gets one: its slurmstepd may have died,
  and nobody but slurmctld can end it then.
- ``sbatch`` gets an environment of our own making, so that nothing of the user's goes to the node and
  Slurm need not make one by a login, which takes seconds where home folders are slow.

- A step is known by its name, for it has no number before it has a place. What waits is its ``srun``, a process
  of a session of its own, and what ended it is what that wrote: Slurm forgets steps at once.
- An allocation is never cancelled, and no job is submitted where jobs are steps.

Threads and locks are those of :class:`fiber.backend_parts.batch.BatchBackend`.

=================  ======================================================
plugin, config     hooks and settings
backend            the Backend: the system with the parts of the core
system             Slurm's commands: submission, questions, signals; ``fiber doctor slurm``
allocation         steps: processes of srun, their rows and ends; has a lock of its own
sruns              program that ends the steps of a dead program; finds srun's that wait
options            options of sbatch from a job's specification (pure)
steps              srun's command line and words, where jobs are steps (pure)
rows               rows of squeue read (pure)
testing            the witness of the conformance kit
=================  ======================================================
"""
