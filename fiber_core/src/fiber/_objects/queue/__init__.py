"""Queues, queues of tasks, and pipes between hosts: state at their owner, readers and writers anywhere.

A *channel* is a queue (one *direction*: every holder reads and writes) or a pipe (one direction
from end to end, or two). Readers and writers of other processes prefetch and send batches of
*items*, pickles that only the process which gets them loads.

1. *State machine* (``state``; pure): an event in, commands out; no thread, socket or clock.
   ``QueueState`` decides which reader gets the next item, ``CreditWindow`` which writer may send,
   ``InFlight`` which items come back when a reader dies.
2. *Owner's side* (``channel``): ``Channel`` executes the commands; ``LocalReader`` and
   ``LocalWriter`` are for its own threads.
3. *Other processes' side*: ``RemoteReader``, ``RemoteWriter`` (or ``DirectWriter``), and
   ``RemoteChannel``, which the handles of a process share.

Invariants:

- An item is the queue's until its reader has settled it, that is, handed it to its user. Items
  prefetched by a reader that is gone go back to the front, in order; on the owner's host its
  progress page tells exactly which these are. So it is with items that a writer sent to a reader itself, of which
  the owner has copies.
- Items of one writer keep their order. An interrupted or timed-out ``get`` loses no item.
- No message waits for a user: a slow reader delays only its own items, which the owner recalls when
  other readers wait.
- A queue ends with its owner; readers on the owner's host still get the items that they have.

Threads: none of its own. Messages arrive on the handler thread, which must not block; what has to
be sent from there is submitted to the owner's executor. Locks: ``Channel.lock`` at the owner, held
briefly; in other processes ``_lock`` for the state of a reader or writer, and ``_wire`` over making
and sending a message, which the handler thread never takes.

Called by ``fiber.queues``, ``fiber.connection`` and managers, by way of ``handle`` and ``store`` of
the package above; calls ``_wire`` for messages.

- ``state``, ``requests``: the state machine with what is delivered and not settled, and its requests and
  commands.
- ``channel``: the owner's side. ``reader``, ``remote_channel``: the other processes' side.
- ``tasks``: all three for ``JoinableQueue``.
- ``descriptor_stream``: descriptors of large items between processes of one host.
- ``bypass``, ``bypass_socket``: a socket through which a writer sends small items to a reader itself, beside a copy to the owner:
  the owner's state of it, and the two ends.
- ``messages``: items and batches. ``progress``: progress pages.
"""
