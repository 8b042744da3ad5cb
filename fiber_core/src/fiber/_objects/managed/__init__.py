"""Managed objects: method calls from any process on an object in a manager's process.

A managed object is a :class:`~fiber._objects.managed.referent.Referent` at its owner, the process
of a manager, and a :class:`~fiber._objects.managed.referent.RemoteReferent` in every process
that has proxies of it. ``fiber.managers`` builds servers and proxies on both.

Invariants:

- Calls of one *caller*, that is a thread of any process or the asynchronous calls of one process to
  one object, run in order on one thread of the owner. So locks that know their holder by its thread
  work, and a slow call delays only its own caller.
- Arguments and values are copies, pickled also within one process. References to shared objects in
  them are held until the other side has unpickled or dropped them.
- A method whose caller died or was interrupted while it ran is rolled back, where the manager knows
  how (an item that was got, a lock that was acquired).
- A method's exception, ``SystemExit`` included, ends neither its thread nor the process.

Between processes of one host, the calls of a thread go through a pipe of their own (``channel``), which the
caller's thread and its thread at the owner read and write themselves.

Threads: one for each caller at the owner (``CallerThreads``), ended when the caller ends or after
30 idle seconds without a channel. Other answers arrive on the handler thread; user code never runs there, finalization
included. One lock in ``CallerThreads``, held briefly.

``calls``: messages and outcomes; ``referent``: the owner's side with its threads, and the
other processes' side; ``channel``: both ends of such a pipe.
"""
