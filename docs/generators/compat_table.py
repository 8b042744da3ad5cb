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
    prefix: str, names: str, why: str = "how the stdlib's module works inside"
) -> dict[str, Deviation]:
    return _all(prefix, names, Deviation("different", f"absent: {why}", covers=True))


_CLASS = (
    "a class, where the stdlib has a function that makes one: it can be named in annotations and "
    "asked for by `isinstance`; works between machines"
)
_HOLDER = (
    f"{_CLASS}; where its holder dies the next one gets it and is warned, or told by an error "
    '(`on_holder_death="raise"`)'
)
_PERMITS = f"{_CLASS}; permits of holders that died come back if asked for (`recover=True`)"
_PROGRESS = "`progress=True` shows how far it is, see [](../guides/watching.md)"
_CTX = "`ctx` may be omitted; works between machines"
_DESCRIPTORS = "descriptors mean nothing to another machine"
_TRUST = (
    "between hosts by TLS; nothing is unpickled from who has not proved who it is, and "
    "without an authkey only processes of the run get in: see [](../guides/two-programs.md)"
)
_SERVER = "how the stdlib's server works inside; ours has another protocol"

#: by the key of a name, see compat_walk.py
TABLE: dict[str, Deviation] = {
    # -- the package
    **_all("", "Barrier Condition Event", better(_CLASS)),
    **_all("", "Lock RLock", better(_HOLDER)),
    **_all("", "Semaphore BoundedSemaphore", better(_PERMITS)),
    "Queue": better(
        f"{_CLASS}; values are pickled in `put`, so that one that cannot be is an error there; what "
        "a reader that dies was not given by `get` is not lost"
    ),
    "SimpleQueue": better(f"{_CLASS}; what a reader that dies was not given is not lost"),
    "JoinableQueue": better(
        f"{_CLASS}; tasks that a reader has not finished when it dies go to another one, and are not "
        "counted as done"
    ),
    "Pool": better(
        "a class; a worker that dies is replaced and its tasks are run again; grows and shrinks; "
        "tasks may ask for resources, see [](../guides/errors-and-retries.md)"
    ),
    "Process": better(
        "runs on the backend that was chosen; `@fiber.meta` says what it needs; `exitcode` and "
        "`join` raise `StartError` where the platform could not start it; Ctrl-C interrupts children "
        "as there, and those on other hosts too, see [](../design/overview.md#ctrl-c)"
    ),
    **_all(
        "",
        "Process.terminate Process.kill",
        different(
            "its own children end with it, on every backend, and none is left without a parent; there "
            "those of a killed process go on. They may have no time to say that its parent is gone"
        ),
    ),
    "Process.pid": different(
        "of the host that it runs on; there, and here too, its supervisor reaps it when it ends, so that "
        "from then on the number may be another process's, where the stdlib keeps it until `join()`. Use "
        "`terminate()`, `kill()`, `sentinel` and `exitcode`, which never mean another one"
    ),
    "Process.interrupt": better("on every Python; the stdlib has it since 3.14"),
    "Pipe": better(
        "its ends work between machines, and each may be held by many processes; between machines "
        "`close()` waits until what was sent has arrived, and `send()` does not"
    ),
    "cpu_count": different("the CPUs that the backend has for jobs, by affinity and quota"),
    "get_start_method": different(
        '"spawn" where none was chosen; see [](../guides/contexts.md) for what names mean'
    ),
    "get_all_start_methods": different(
        'the names of the platform, "spawn" first; all of them mean Fiber\'s own start'
    ),
    "freeze_support": different(
        "a frozen program is told to call `set_executable`, because Fiber starts its children with "
        "an interpreter"
    ),
    "reducer": different(
        "cannot be replaced; types are registered with `fiber.reduction.register` or `copyreg`"
    ),
    **_all(
        "",
        "Value Array RawValue RawArray",
        better("in shared memory on one host, served by their maker to others, with one API"),
    ),
    "Manager": better(
        "used from other machines too; `fiber.managers.AsyncManager` has calls that return at once"
    ),
    # -- pool
    "pool.Pool": better("see `Pool` of the package; `context` is accepted and changes nothing"),
    "pool.Pool.Process": different("absent: override nothing to have workers with children"),
    **_all("pool", "Pool.map Pool.starmap Pool.starmap_async", better(_PROGRESS)),
    "pool.Pool.map_async": better(
        f"of an empty iterable, too, the callback is called, with `[]`; {_PROGRESS}"
    ),
    "pool.Pool.close": different(
        "a worker that has not begun when nothing is left to do, for want of a place perhaps, is not "
        "waited for: its initializer does not run"
    ),
    **_all(
        "pool",
        "Pool.imap Pool.imap_unordered",
        better(
            "where the iterable raises, the items before it come first, also those of its chunk"
        ),
    ),
    "pool.ThreadPool": different(
        "the stdlib's own class; threads do not cross processes. It is no subclass of Fiber's `Pool`"
    ),
    **_all(
        "pool",
        "ApplyResult AsyncResult MapResult IMapIterator IMapUnorderedIterator",
        different("made by a pool only, with arguments of its own; its methods are the same"),
    ),
    **_internal("pool", "ExceptionWithTraceback INIT mapstar rebuild_exc starmapstar worker"),
    # -- queues
    **_all("queues", "Queue JoinableQueue SimpleQueue", better(_CTX)),
    # -- managers
    **_all(
        "managers",
        "BaseManager SyncManager",
        different("`serializer` is pickle: XML-RPC is refused; `shutdown_timeout` on every Python"),
    ),
    "managers.MakeProxyType": different("no `_cache`, which is for the stdlib's own use"),
    "managers.SharedMemoryManager": different(
        "its blocks go with the run, however that ends; for backends whose processes share a host"
    ),
    "managers.Server": Deviation("different", f"its methods are {_SERVER}", covers=True),
    "managers.Value.value": different(
        "an attribute of each object, where the stdlib's has a property"
    ),
    **_internal(
        "managers",
        "HAS_SHMEM ProcessLocalSet SharedMemoryServer all_methods convert_to_error dispatch "
        "public_methods rebuild_as_list reduce_array",
        _SERVER,
    ),
    # -- connection
    "connection.Client": better(_TRUST),
    "connection.Listener": better(
        f"{_TRUST}. An empty authkey and AF_UNIX addresses without a file are refused"
    ),
    "connection.Connection": different(
        "made by `Pipe` and `Listener` only, from no descriptor; its methods are the same"
    ),
    **_internal("connection", "ConnectionWrapper XmlClient XmlListener", "only for XML-RPC"),
    **_internal(
        "connection",
        "BUFSIZE CHALLENGE CONNECTION_TIMEOUT FAILURE MESSAGE_LENGTH WELCOME SocketClient "
        "SocketListener address_type arbitrary_address rebuild_connection reduce_connection",
    ),
    # -- shared_memory
    "shared_memory.SharedMemory": better(
        "a block goes with the run, however that ends, and with no process before; `track` on every "
        "Python; refused by backends whose processes do not share a host"
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
            "a slot that holds a function, so that `with` calls it at once; call it of an object, not of the class"
        )
        for kind in ("BoundedSemaphore", "Lock", "RLock", "SemLock", "Semaphore")
        for name in ("__enter__", "__exit__")
    },
    **_internal(
        "synchronize", "RECURSIVE_MUTEX SEMAPHORE", "numbers for the semaphores of the system"
    ),
    # -- sharedctypes
    "sharedctypes.rebuild_ctype": different("for pickles only; has arguments of its own"),
    # -- context
    "context.DefaultContext": different("takes no context: all start in the same way"),
    # -- process
    **_internal("process", "ORIGINAL_DIR"),
    # -- reduction
    **_internal(
        "reduction", "ACKNOWLEDGE DupFd recv_handle recvfds send_handle sendfds", _DESCRIPTORS
    ),
    **_internal(
        "reduction.AbstractReducer", "DupFd recv_handle recvfds send_handle sendfds", _DESCRIPTORS
    ),
    "reduction.HAVE_SEND_HANDLE": different(f"False: {_DESCRIPTORS}"),
    "reduction.ForkingPickler": different(
        "`register` is `copyreg.pickle`: it counts wherever Fiber pickles; what others have "
        "registered with the stdlib's class counts with the stdlib only, but for torch's tensors "
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
