"""MPI over jobs: the user's own ``mpirun``, whose daemons our agent starts on a run's members."""
