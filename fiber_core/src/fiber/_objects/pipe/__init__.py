"""Pipes and simple queues between processes of one host: the two sockets of a pair, which nobody owns.

Each end is a ``SOCK_SEQPACKET`` socket: a message arrives whole or not at all, and any number of processes
and threads send and receive on the same end without a lock. The kernel keeps what was sent however its
sender ends, and tells the other end when the last process that holds this one is gone. So the threads that
send and receive make the system calls themselves: there is no message between Fiber's processes, no
handler thread, and nothing to wait for when a process ends.

Invariants:

- A process that pickles an end keeps it open until the pickle was loaded or will not be (references, as
  of all shared objects). Whoever loads it asks that process for a duplicate of the descriptor, and has
  nothing in common with it afterwards.
- A simple queue is both sockets in one object: one that all send to, and one that all receive from. No
  process sees its end, and what its last holder leaves unread is dropped.
- Programs of other hosts, and those with another authkey, cannot have a descriptor, save the end that a
  listener makes for who has its authkey (``End.near_domain``): what is sent there is for that auth domain. The process that they
  ask makes a pipe of the other kind (``queue``) for them, and passes messages on while both are held.
- An item with references that is dropped unread, because the last reader has gone, releases them.

Threads: one for each bridge, ``fiber-bridge``, which ends with either side. Locks: ``OwnedObject.lock``;
none is held during a system call that waits.

- ``packets``: messages on a socket. ``memories``: memory of large ones, and of queues' large items.
  ``end``: ends, their references and their way to other processes; bridges to those who cannot have a
  descriptor.
"""
