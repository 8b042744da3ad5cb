"""The ``fiber`` command.

``main`` is the program, which finds its sub-commands. Each of the core's is the object ``command`` of
the module of its name (``fiber top`` is in ``top``), but for those that ``jobs``, ``runs``, ``dashboard`` and
``installation`` have; it is imported when it is called. Plugins add others by the hook ``fiber_commands``. The other modules:

============ =========================================================================
main         the program: logging, errors, exit codes, sub-commands that are imported on use
output       tables, JSON, notes, errors and exit codes
options      options shared by commands, parsers of their values, options that backends add
session      settings, plugins and backend of one command; runs that it begins; events of jobs, signals and
             answers on the terminal in one queue
jobs         commands for jobs, and looking them up
installation commands for what is installed and set
runs         runs of this host, and those whose programs are jobs on other hosts; ``gc``
============ =========================================================================

Invariants: a command that only inspects (``ps``, ``logs``, ``kill``) opens a backend that belongs to
no run and leaves nothing behind. A command that begins a run removes it again, unless the run is
detached. Errors of Fiber's become one line on stderr and an exit code: 1, or 2 for wrong settings;
with ``--debug`` a traceback too. Imports of a sub-command are inside its function, so that
``fiber --help`` is quick.

Threads: the main thread runs the command; a Watcher has one per run, which puts the backend's events
into its queue; an open question and copied output have one each. No locks.

The top layer: called by nothing but tests; calls all packages.
"""
