"""Shared objects: each lives in the process that made it, its owner, and is used from any process.

Pipes and simple queues on one host are an exception (``pipe``): there the kernel keeps the items, and no
process owns them.

This package has queues, pipes, locks and the like, shared memory, shared values and managed objects. For each kind there is an owner's side (``OwnedObject``) with all state, and a
side of the other processes (``RemoteObject``, one for each object and process) that sends requests
to the owner. A user's object, such as ``fiber.Queue``, is a :class:`~fiber._objects.handle.Handle`
of one end of either side; both have the same methods, so it does not matter which.

Invariants:

- An object lives while it has references: handles in any process, and pickles in flight. A pickle
  carries an address and a reference id, under which the owner counts it until it is loaded or
  voided.
- Messages of one process to one owner keep their order. A lost connection is never made again for
  the same objects: the owner has given their items and permits to others by then.
- A process that exits normally first sends all that was put, gives undelivered items back and, as
  an owner, waits for its readers up to the setting ``linger``. A connection that ends without that
  is a death of the process; for locks an exit code other than 0 is one too.
- An object serves its own run, and an auth domain only after its address was exported to that.

Threads: the runtime's handler thread runs all messages and must not block. ``fiber-owner-<ident>``,
one for each owner in use, sends what must not delay users or the handler; ``fiber-background`` runs
actions that may take long; ``fiber-calls-<process>-<n>`` run methods of managed objects. Each ends
when idle. Locks: ``OwnedObject.lock`` for an object's state;
``RemoteObject._lock`` for its handles, and a lock or condition of each kind for the rest;
``Store._lock`` for the registry. Finalizers take none of them: they submit to an executor or to the
handler thread.

Called by ``fiber.{queues,connection,synchronize,sharing,sharedctypes,managers}`` and the pool;
calls ``_wire`` for connections, ``_runtime`` for the process, and little of ``_tunnel`` and
``_agent``.

- ``address``: kinds, shapes, addresses.
- ``store``: registry of one process. ``handle``: base of the users' objects, and pickling of items.
- ``owned_object`` (with its count of references), ``remote_object`` (with the connection to the owner): bases of
  the two sides.
- ``descriptors``: those of the program, and its sockets.
- ``protocol``: messages.
- ``auth_domain``, ``auth_listener``, ``listener_addresses``: processes of other programs. ``auth_domain`` is
  apart from ``store`` so that credentials and endpoints are in one place.
- ``queue``, ``pipe``, ``sync``, ``memory``, ``blocks``, ``managed``: the kinds.
"""
