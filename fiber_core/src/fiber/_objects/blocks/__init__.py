"""Blocks: immutable values that one process made and any number of processes read.

``fiber.shared`` pickles a value once, its arrays out of band, into sealed memory of its process
(see :mod:`fiber._objects.memory.backing`). Processes of that host map it. On another host one
process fetches the bytes, in pieces, and the others map its copy: a value crosses once to a host,
and takes memory once there, however many processes and tasks read it.

Invariants:

- Nothing changes a block after it was made; arrays in it are read-only.
- At most one process of a host fetches a block for others; when it dies or gives up, the next one
  that waits fetches it.
- A copy outlives the last handle in its process until the owner frees the block, is gone, or the
  process needs the room (least recently used first).
- A process unpickles a value once, on first use, for all its handles.

Threads: none of its own. The owner answers on the handler thread, one piece at a time; evictions
and announcements run on the owner's executor. Locks: ``Block.lock`` at the owner; ``_fetching`` in
other processes, held while a copy is mapped or fetched. No lock is held when a value is deleted, as
``__del__`` may be user code.

Called by ``fiber.sharing`` and the store; calls ``memory.backing`` and ``_wire``.

- ``block``: a value as bytes, and unpickled once; protocol, the owner's side, the other processes' side.
- ``copies``: the owner's table of copies, and a process's cache of unused ones; pure.
"""
