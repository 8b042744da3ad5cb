"""Memory that processes share: mapped on the maker's host, read and written by messages on others.

Two kinds of memory, both a memfd where the system has that, else a file in the run's folder:

- *Arenas*, readable and writable, divided into allocations, for ctypes objects
  (``fiber.sharedctypes``). On other hosts stand-ins with the same API read and write by messages.
- *Sealed memory*, written once and mapped privately, for shared values (``_objects.blocks``) and
  the payloads of a pool.

Invariants:

- A :class:`~fiber._objects.memory.backing.Location` (name, pid, size, tag) finds memory on one
  host; a process that maps it checks the tag, since names and descriptors are used again.
- All pages of an arena are allocated when it is made: a lack of room is an ``OSError`` there, never
  a SIGBUS later. Allocations are all zeros.
- Memory is freed when no process has a handle. Mappings stay valid after that, and after the
  maker's death.

Threads: none of its own; the owner answers reads and writes on the handler thread, at most a
mebibyte at a time. Locks: one of each heap, and those of the tables of mappings.

Called by ``fiber.sharedctypes``, ``_objects.blocks`` and the pool; calls the store and ``_wire``.
``backing`` uses neither, so that a process without shared objects can use them.

- ``backing``: memfds and files, locations, arenas, sealed memory.
- ``heap``: allocations, the shared object of one, and its handle.
- ``ctypes_objects``: ctypes instances over allocations, their pickling, the layout of types, and stand-ins on
  other hosts.
- ``tensors``: torch's tensors in shared memory, pickled by reference; imported with torch.
"""
