"""Devices of one host: found by probes, granted to jobs, shown to their processes.

A *provider* (:class:`fiber.abc.ResourceProvider`) names a kind of device, has a program that lists
those of a host, and knows the environment by which processes see theirs. ``probe`` runs that
program, ``allocator`` grants whole devices to one job at a time and is pure, and ``nvidia`` is the
built-in provider of kind ``gpu``, which ``_plugins.defaults`` offers through the hook that third parties use.

Invariants: a device is granted to one job at a time; a grant is all or nothing; the answer follows
from the order of calls alone. There are no threads and no locks: the caller serialises its calls.
The supervisor's ``devices`` adds lock files, by which several runs on a host keep one account.
Callers are the supervisor's ``devices``, the local, docker and ssh plugins, and the fake platform
of :mod:`fiber.testing`.
"""
