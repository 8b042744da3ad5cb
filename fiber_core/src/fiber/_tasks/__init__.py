"""Tasks on their way from a pool to its workers and back.

``Pool.map`` makes a :class:`call.Call`: the function pickled once, the items, the sink of the
results. The :class:`dispatcher.Dispatcher` adds it to the pending table (:mod:`fiber._tasks.pending`),
which decides which worker gets which items, and carries out the table's commands: a
:class:`call.Session` sends entries to one worker. In the worker process :class:`worker.Worker`
runs them as batches and sends outcomes back, which the dispatcher gives to the call's sink.

Invariants: each item has exactly one outcome, whatever workers die or reconnect; nothing is sent to
a worker that has no credit for it; tasks do not share mutable arguments or results unless
``chunksize`` says that they may; an error of user code while something is pickled or unpickled
becomes the outcome of the item concerned and ends no thread of Fiber's.

Threads and locks, owner: messages of workers arrive on the endpoint's handler thread, or on that of
a caller of ``apply`` who waits; callers add calls on their own threads; timers run on the reactor.
All of them take the dispatcher's lock, under which the table runs, arguments are pickled and sinks
are called, so a sink must not wait; results are unpickled before it is taken. Worker: the main
thread reads the link and runs tasks; while an entry of several tasks takes long, the thread
``fiber-control-reader`` reads the link in its place.

Called by ``fiber._workers`` (groups, worker process), ``fiber.pool`` and ``fiber.executor``; calls
``fiber._wire``, and the owner of the workers through :class:`dispatcher.WorkerObserver` only.

call            one map, apply or imap: function, items, sink, pickling; what sends it to one worker
dispatcher      owner side: messages to events of the table, commands of the table to messages
pending/        which worker gets what, pure
protocol        bodies of the messages between a pool and its workers: arguments, outcomes and all others
shared_payload  large functions and arguments in shared memory, both sides
worker          worker side: loop, running batch, function cache, control reader
"""
