"""The ``fiber`` command: the same on every backend, a module per sub-command."""
