"""Helpers that know nothing of Fiber: the bottom layer, imported by all others.

================ ====================================================================
values           how the project declares value classes: attrs' names, for type checkers attrs itself
light_values     the implementation of ``values`` at run time, without importing attrs, and what ``help()`` shows
entry_points     installed distributions, without importlib.metadata, and names of published ones
threads          event loops, threads that run actions, and waits of which Ctrl-C is always noticed
sockets          sockets that never block, on such a loop, and accepting them
interpreter      memory, start method and end of this process
cgroups          CPUs and memory that this process may use
log              Fiber's loggers, which import ``logging`` only if the program uses it
slowness         rule by which one of several workers counts as slow
================ ====================================================================

Invariants: no module imports anything of Fiber outside this package; importing one is cheap, since
most of a program's time to its first result is imports.

Threads and locks: a Reactor has a thread of its own; a SerialExecutor and a CallbackThread have one
thread each, which runs actions one after another in the order of submission.
``SerialExecutor.submit`` takes no lock, so finalizers may call it at any moment.
"""
