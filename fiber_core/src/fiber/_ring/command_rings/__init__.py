"""Rings whose ranks run a command: ``fiber ring run`` and the other words of ``fiber ring``.

A ring of commands is a :class:`~fiber._ring.ring.Ring` whose function runs a child process. The
process that runs it, in the foreground or detached, is its *owner*. Other shells of the same user
find the ring by name in the state folder, and reach the owner at its control socket.

Invariants:

* A record is claimed by one owner at a time; its files are replaced whole, never edited.
* A status is taken from the owner while that answers, from the file afterwards; a ring whose owner
  was killed has failed, for its members end with their leases.
* Socket and folders may be entered by their user alone.

Threads, all in the owner: ``fiber-ring-control`` answers control commands, ``fiber-ring-lines``
prints and records output; the main thread waits for the ring and writes its status.

Called by :mod:`fiber.cli.ring`; calls :mod:`fiber._ring.ring`, and
:mod:`fiber.backend_parts.liveness` for claims.

* ``records``: folders, statuses, counters, and the control socket.
* ``run``: the owner, and the function of the ranks. Apart from ``records``, so that looking at
  rings imports neither ring nor queue.
"""
