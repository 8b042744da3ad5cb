"""Groups of worker processes: keeping N alive, replacing the lost, giving each its resources.

Behind each ``Pool`` and ``Executor`` stands one :class:`group.WorkerGroups`. It has a
:class:`group.WorkerGroup` for each combination of resources and image that its functions ask for.
A group has a dispatcher (:mod:`fiber._tasks.dispatcher`), which gives tasks to its workers, and a
:class:`manager.WorkerManager`, whose thread starts, retires and kills them as its pure state
machine, :class:`state.GroupState`, decides.

Invariants: a worker that ends is reported to the dispatcher once, with its cause; no worker is
started after ``close`` or ``terminate``; a group whose workers fail before they are ready gives up
after a bounded number of attempts, with the last reason; the clock is passed into ``state`` and
``records``, which have no thread, lock or socket.

Threads: one for each manager that has begun, named after the group, and one for each ``imap``,
which draws its iterable. The runtime's reactor calls the observer methods and the autoscaler; a
retirement may also come on the manager's or a caller's thread. The status of jobs comes on the
launcher's threads and on the one that launches.
Locks: each manager's condition guards its ``GroupState`` and is never held while another object is
called; ``WorkerGroup`` and ``WorkerGroups`` have a lock each for starting, and ``OpenCalls`` one that
is held while a call is made, before the dispatcher's.

Called by ``fiber.pool`` and ``fiber.executor``; calls the runtime's launcher and endpoint and the
dispatcher. The dispatcher calls back through ``WorkerObserver``, which ``WorkerGroup`` implements.

group         a pool's options, groups, one group, autoscaling
manager       the thread that keeps a group's workers alive
state         one record a worker; what to do next, decided without a clock; report of waiting workers
open_calls    calls that grow: of tasks given one by one, by function, and of the iterable of an ``imap``
kept_tasks    failed tasks in files, to be run again by hand; only where that is wanted
pool_process  the process of one worker, and the store of large payloads
"""
