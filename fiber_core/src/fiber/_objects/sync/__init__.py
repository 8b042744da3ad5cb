"""Locks, semaphores, conditions, events and barriers between processes.

One module for each kind, from top to bottom: the state machine, the owner's side, the side of all
other processes. The users' classes are in ``fiber.synchronize``.

1. *State machines* (``SemaphoreState``, ``ConditionState``, ``EventState``, ``BarrierState``) are
   pure: an event in, answers out; no thread, socket or clock. Requests wait in one ``WaitQueue``,
   first come, first served. A lock is a semaphore of one permit.
2. *Owner's side* (``OwnedWaitable`` and its subclasses) guards the machine by the object's lock,
   wakes threads of its process by a lock each, and sends answers to other processes.
3. *Other processes' side* (``RemoteWaitable`` and its subclasses) sends requests with numbers of
   its own and waits for the answers.

Where the processes of a run share memory, the state is there (``shared_lock``, ``shared_semaphore``,
``SharedEvent``, ``SharedBarrier``, ``SharedCondition``, on ``monitor``) and 1 to 3 are not used, except that the owner's side acts for processes that do not map this memory.

Invariants:

- An interrupt loses nothing: an answer that comes for a thread which was interrupted is rolled
  back. Therefore requests are casts with numbers of their own, and no calls, which forget their
  number.
- A timeout cancels the request at the owner, whose answer decides; so a grant and a timeout cannot
  cross.
- A process that exits normally reports the permits that it leaves taken (``ENDING``). A connection
  that ends without it is a death: its permits are recovered as ``on_holder_death`` or ``recover``
  says, notifications that it did not acknowledge wake others, and barriers break.
- The permit of a lock may be kept by another process of the run, which takes it without a message until it
  is recalled. Whether that process holds it is in its notes, which its supervisor reads when it has died and
  its parent sends to the owner.

Threads: ``fiber-waiter`` at an owner, while it waits in shared memory on behalf of others; an answer is read
by the thread that waits for it or by the handler thread, rollbacks run on the owner's executor.
Locks: ``lock`` at the owner; ``_guard`` in other processes; both are held briefly.

``waitable`` has what the kinds have in common, ``hold`` what a process counts for itself,
``protocol`` the values of the state machines and the messages. See
``docs/design/synchronization.md``.
"""
