"""Where Fiber's names differ from the running Python's ``multiprocessing``, each with the reason.

A key is a name, or a class for all its members if it says so. A name that is in no table is the same.
"""

import attrs


@attrs.frozen
class Deviation:
    """How a name differs."""

    #: better, or different
    verdict: str
    note: str
    #: True where it is said of all members of a class as well
    covers: bool = False


def better(note: str) -> Deviation:
    """It does all that the stdlib's does, and more."""
    return Deviation("better", note)


def different(note: str) -> Deviation:
    """It is absent or does something else."""
    return Deviation("different", note)


def _all(prefix: str, names: str, deviation: Deviation) -> dict[str, Deviation]:
    dot = f"{prefix}." if prefix else ""
    return {f"{dot}{name}": deviation for name in names.split()}


def _internal(
    prefix: str, names: str, why: str = "internal to the stdlib's module"
) -> dict[str, Deviation]:
    return _all(prefix, names, Deviation("different", f"absent: {why}", covers=True))


_CLASS = (
    "a class, so that annotations and `isinstance` can name it (the stdlib has a function that makes "
    "one); works between machines"
)
_HOLDER = (
    f"{_CLASS}; if its holder dies, the next process gets it, with a warning, or gets an error "
    '(`on_holder_death="raise"`)'
)
_PERMITS = f"{_CLASS}; with `recover=True` the permits of dead holders come back"
_PROGRESS = "`progress=True` shows the progress, see [](../guides/watching.md)"
_CTX = "`ctx` may be omitted; works between machines"
_TRUST = (
    "uses TLS between hosts; nothing is unpickled from a peer that has not proved that it knows the "
    "key, and without an authkey only processes of the run can connect: see [](../guides/two-programs.md)"
)
_SERVER = "internal to the stdlib's server; Fiber's has another protocol"

#: by the key of a name, see compat_walk.py
TABLE: dict[str, Deviation] = {
    # -- the package
    **_all("", "Barrier Condition Event", better(_CLASS)),
    **_all("", "Lock RLock", better(_HOLDER)),
    **_all("", "Semaphore BoundedSemaphore", better(_PERMITS)),
    "Queue": better(
        f"{_CLASS}; `put` pickles the value, and raises if that fails; items that a dead reader had "
        "fetched and `get` had not returned are not lost"
    ),
    "SimpleQueue": better(f"{_CLASS}; items that a dead reader had not been given are not lost"),
    "JoinableQueue": better(
        f"{_CLASS}; unfinished tasks of a dead reader go to another reader, and are not counted as done"
    ),
    "Pool": better(
        "a class; a dead worker is replaced and its tasks run again; can grow and shrink; "
        "tasks may ask for resources; see [](../guides/errors-and-retries.md)"
    ),
    "Process": better(
        "runs on the chosen backend; `@fiber.meta` says which resources it needs; `exitcode` and "
        "`join` raise `StartError` if the platform could not start it; Ctrl-C interrupts children "
        "as in the stdlib, and also those on other hosts, see [](../design/overview.md#ctrl-c)"
    ),
    **_all(
        "",
        "Process.terminate Process.kill",
        different(
            "also ends the process's own children, on every backend, possibly before they notice that "
            "their parent is gone; in the stdlib the children of a killed process continue"
        ),
    ),
    "Process.pid": different(
        "a number of the host on which the process runs. Its supervisor reaps it at its end; from then on "
        "another process may get the number, which the stdlib keeps until `join()`. Use "
        "`terminate()`, `kill()`, `sentinel` and `exitcode`, which never refer to another process"
    ),
    "Process.interrupt": better("on every Python; the stdlib has it since 3.14"),
    "Pipe": better(
        "its ends work between machines, and many processes may hold each; between machines "
        "`close()` waits until everything that was sent has arrived, and `send()` does not"
    ),
    "cpu_count": different(
        "the number of CPUs that the backend has for jobs, by affinity and quota"
    ),
    "get_start_method": different(
        '"spawn" by default; see [](../guides/contexts.md) for the meaning of the names'
    ),
    "get_all_start_methods": different(
        'the names of the platform, "spawn" first; all of them mean Fiber\'s own way to start'
    ),
    "freeze_support": different(
        "in a frozen program, raises an error that asks for `set_executable`, because Fiber starts "
        "children with an interpreter"
    ),
    "reducer": different(
        "cannot be replaced; types are registered with `fiber.reduction.register` or `copyreg`"
    ),
    **_all(
        "",
        "Value Array RawValue RawArray",
        better(
            "shared memory on one host; on other hosts the same API, served by the process that created it"
        ),
    ),
    "Manager": better(
        "can be used from other machines; calls of `fiber.managers.AsyncManager` return at once"
    ),
    # -- pool
    "pool.Pool": better(
        "see `Pool` of the package; `context` is accepted but has no effect. A `map` without `chunksize` loads its function "
        "once in each worker, not once for each chunk of a number that it chooses itself: what a task changes in a "
        "method's object, later tasks of the call on that worker see. Tasks of `apply` and `apply_async` begin in the order in "
        "which they were submitted; they and each `map` or `imap` whose tasks wait take turns. Workers are called "
        "`PoolWorker-1` and so on, whatever the start method"
    ),
    "pool.Pool.Process": different("absent: workers may have children without it"),
    **_all("pool", "Pool.map Pool.starmap Pool.starmap_async", better(_PROGRESS)),
    "pool.Pool.map_async": better(
        f"calls the callback also for an empty iterable, with `[]`; {_PROGRESS}"
    ),
    "pool.Pool.close": different(
        "does not wait for a worker that has not started when no task is left, for example because it "
        "has no place: its initializer does not run"
    ),
    **_all(
        "pool",
        "Pool.imap Pool.imap_unordered",
        better(
            "if the iterable raises, the results of all items before that come first, also those of the same chunk"
        ),
    ),
    "pool.ThreadPool": different(
        "the stdlib's own class, because threads stay in one process; not a subclass of Fiber's `Pool`"
    ),
    **_all(
        "pool",
        "ApplyResult AsyncResult MapResult IMapIterator IMapUnorderedIterator",
        different("created only by a pool, with other arguments; the methods are the same"),
    ),
    **_internal("pool", "ExceptionWithTraceback INIT mapstar rebuild_exc starmapstar worker"),
    # -- queues
    **_all("queues", "Queue JoinableQueue SimpleQueue", better(_CTX)),
    # -- managers
    **_all(
        "managers",
        "BaseManager SyncManager",
        different(
            "`serializer` can only be pickle, not XML-RPC; has `shutdown_timeout` on every Python"
        ),
    ),
    "managers.MakeProxyType": different("has no `_cache`, which is private to the stdlib"),
    "managers.SharedMemoryManager": different(
        "its blocks are removed when the run ends, in whatever way; only for backends whose processes share a host"
    ),
    "managers.Server": Deviation("different", f"its methods are {_SERVER}", covers=True),
    "managers.Value.value": different("an attribute of each object; a property in the stdlib"),
    **_internal(
        "managers",
        "HAS_SHMEM ProcessLocalSet SharedMemoryServer all_methods convert_to_error dispatch "
        "public_methods rebuild_as_list reduce_array",
        _SERVER,
    ),
    # -- connection
    "connection.Client": better(_TRUST),
    "connection.Listener": better(
        f"{_TRUST}. Rejects an empty authkey, and AF_UNIX addresses without a file"
    ),
    "connection.Connection": different(
        "created only by `Pipe` and `Listener`, not from a descriptor; the methods are the same"
    ),
    **_internal("connection", "ConnectionWrapper XmlClient XmlListener", "only for XML-RPC"),
    **_internal(
        "connection",
        "BUFSIZE CHALLENGE CONNECTION_TIMEOUT FAILURE MESSAGE_LENGTH WELCOME SocketClient "
        "SocketListener address_type arbitrary_address rebuild_connection reduce_connection",
    ),
    # -- shared_memory
    "shared_memory.SharedMemory": better(
        "a block is removed when the run ends, in whatever way, and not when one of its processes ends; "
        "has `track` on every Python; backends whose processes do not share a host refuse it"
    ),
    # -- synchronize
    **_all(
        "synchronize",
        "Barrier BoundedSemaphore Condition Event Lock RLock Semaphore",
        better("see the package; `ctx` may be omitted"),
    ),
    "synchronize.SemLock": different("a base class only"),
    **{
        f"synchronize.{kind}.{name}": different(
            "a slot with a function, which makes `with` faster; call it on an object, not on the class"
        )
        for kind in ("BoundedSemaphore", "Condition", "Lock", "RLock", "SemLock", "Semaphore")
        for name in ("__enter__", "__exit__")
    },
    **_internal(
        "synchronize", "RECURSIVE_MUTEX SEMAPHORE", "constants for the system's semaphores"
    ),
    # -- sharedctypes
    "sharedctypes.rebuild_ctype": different("only for pickles; has other arguments"),
    # -- context
    "context.DefaultContext": different(
        "takes no context: all contexts start processes in the same way"
    ),
    # -- process
    **_internal("process", "ORIGINAL_DIR"),
    # -- reduction
    **_internal("reduction", "ACKNOWLEDGE"),
    "reduction.ForkingPickler": different(
        "`register` is `copyreg.pickle` and applies wherever Fiber pickles. What libraries have "
        "registered with the stdlib's class only applies to the stdlib, except for torch's tensors "
        "in shared memory (see [libraries](../guides/libraries.md))"
    ),
}


def deviation(key: str) -> Deviation | None:
    """How a name differs: its own entry, or that of its class where it covers members."""
    found = TABLE.get(key)
    if found is None:
        of_class = TABLE.get(key.rpartition(".")[0])
        return of_class if of_class is not None and of_class.covers else None
    return found
