"""Helpers that know nothing of Fiber: the bottom layer, imported by all others.

================ ====================================================================
values           how the project declares value classes: attrs' names, for type checkers attrs itself
light_values     the implementation of ``values`` at run time, without importing attrs
entry_points     entry points and versions of installed distributions, without importlib.metadata
known_backends   names of published backends, from a data file
loop             event loop of one thread: descriptors and timers
serial_executor  threads that run actions in order: SerialExecutor, CallbackThread
thread_pool      threads that are started as actions come: ThreadPool
asyncio_wait     waiting in asyncio for an event of another thread
process_memory   resident memory of a process of this host
start_methods    names of multiprocessing's start methods, and the one the program chose
field_docs       text that ``help()`` shows of a value class, from comments in the source
finalizing       ``__del__`` methods that may run while the interpreter ends
log              Fiber's loggers, which import ``logging`` only if the program uses it
slowness         rule by which one of several workers counts as slow
waits            waits of bounded length, so that Ctrl-C is always noticed
================ ====================================================================

Invariants: no module imports anything of Fiber outside this package; importing one is cheap, since
most of a program's time to its first result is imports.

Threads and locks: a SerialExecutor and a CallbackThread have one thread each, which runs actions one
after another in the order of submission. ``SerialExecutor.submit`` takes no lock, so finalizers may
call it at any moment.
"""
