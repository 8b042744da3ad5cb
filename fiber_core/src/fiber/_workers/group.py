"""Groups of equal workers: each with a dispatcher for its tasks and a manager for its processes.

A pool or an executor owns :class:`WorkerGroups`, which has one :class:`WorkerGroup` for each
:class:`WorkerSpec` that its functions ask for. Its :class:`PoolOptions` are checked before anything
starts.
"""

from __future__ import annotations

import itertools
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from fiber import hints
from fiber._base import values
from fiber._base.entry_points import load_object
from fiber._base.log import lazy_logger
from fiber._base.threads import CallbackThread, Deadline
from fiber._launch.child import Child
from fiber._runtime.runtime import brief_errors
from fiber._runtime.start import flush_standard_streams, ready_runtime
from fiber._tasks.call import Call, Sink
from fiber._tasks.dispatcher import Dispatcher, FailureKeeper, Tracer, Tracers
from fiber._tasks.protocol import Mode
from fiber._tasks.shared_payload import PayloadStore
from fiber._workers.manager import WorkerManager
from fiber._workers.pool_process import PoolWorker, SealedPayloadStore
from fiber._workers.state import Loss, WorkerRecord
from fiber.exceptions import TerminatedError
from fiber.model import JobStatus, ResourceRequest, Timing
from fiber.process import names_of, requested

if TYPE_CHECKING:
    from fiber._base.threads import Timer
    from fiber._runtime.runtime import Runtime


def checked_chunksize(chunksize: int | None) -> int | None:
    """``chunksize`` as a number of items; None where the program leaves it open.

    Raises:
        ValueError: less than one.
    """
    if chunksize is None:
        return None
    if chunksize < 1:
        msg = f"Chunksize must be 1+, not {chunksize}"
        raise ValueError(msg)
    return operator.index(chunksize)


def require_callable(initializer: Any) -> None:
    """Raise TypeError where ``initializer`` is neither None nor callable."""
    if initializer is not None and not callable(initializer):
        msg = "initializer must be a callable"
        raise TypeError(msg)


def require_int(message: str, value: object) -> None:
    """Raise TypeError with that text where ``value`` is no whole number."""
    if not isinstance(value, int):
        raise TypeError(message)


def require_positive(name: str, value: Any) -> None:
    """Raise ValueError where ``value`` is neither None nor a positive whole number."""
    if value is not None and (not isinstance(value, int) or value < 1):
        msg = f"{name} must be a positive int or None, got {value!r}"
        raise ValueError(msg)


@values.frozen(kw_only=True)
class PoolOptions:
    """Options of a pool or executor as the caller gave them."""

    #: workers at first; None for as many as the backend has CPUs
    size: int | None = None
    #: called in each worker first
    initializer: Callable[..., Any] | None = None
    #: arguments of the initializer
    initargs: Iterable[Any] = ()
    #: chunks that a worker runs before it is replaced, or None
    maxtasksperchild: int | None = None
    #: False where no task may run twice
    error_handling: bool = True
    #: fewest and most workers of an elastic one
    min_size: int | None = None
    max_size: int | None = None
    #: workers in one job
    per_job: int = 1
    #: deaths of a worker after which a task is given up; None for the setting
    max_attempts: int | None = None
    #: True where failed tasks are kept; None for the setting
    keep_failed: bool | None = None
    #: exceptions of a task that are its outcome; any other ends the worker
    task_errors: type[BaseException] = Exception

    def validate(self, current: Runtime) -> tuple[int, int, int]:
        """Check all options; returns the workers at first, at least and at most.

        Raises:
            TypeError: the initializer cannot be called, or the size is no whole number.
            ValueError: a number makes no sense, alone or together with others.
        """
        require_callable(self.initializer)
        found = sizes(current, self.size, self.min_size, self.max_size)
        require_positive("maxtasksperchild", self.maxtasksperchild)
        require_positive("processes_per_job", self.per_job)
        require_positive("max_attempts", self.max_attempts)
        return found


def sizes(
    current: Runtime, processes: int | None, min_size: int | None, max_size: int | None
) -> tuple[int, int, int]:
    """Workers at first, at least and at most.

    Raises:
        TypeError: ``processes`` is no whole number.
        ValueError: the numbers make no sense, alone or together.
    """
    if processes is not None and operator.index(processes) < 1:
        msg = "Number of processes must be at least 1"
        raise ValueError(msg)
    require_positive("min", min_size)
    require_positive("max", max_size)
    size = processes
    if size is None:
        size = min_size if min_size is not None else current.cpu_count()
        if max_size is not None:
            size = min(size, max_size)
    low, high = (
        min_size if min_size is not None else size,
        max_size if max_size is not None else size,
    )
    if not low <= size <= high:
        msg = f"processes={size} is not between min={low} and max={high}"
        raise ValueError(msg)
    return size, low, high


log = lazy_logger()


@values.frozen(kw_only=True)
class WorkerSpec:
    """Resources and image of each worker of a group; the key by which groups differ."""

    #: cpu, memory, devices
    resources: ResourceRequest = values.field(factory=ResourceRequest)
    #: image, where the backend runs images
    image: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal specs."""
        devices = tuple(sorted(self.resources.devices.items()))
        return self.resources.cpu, self.resources.memory, devices, self.image


@values.frozen(kw_only=True)
class GroupOptions:
    """Checked options of a pool or executor, shared by its groups."""

    #: workers at first
    size: int
    #: fewest and most workers; both equal to ``size`` where the pool is not elastic
    min_size: int
    max_size: int
    #: units in a worker's life
    maxtasksperchild: int | None
    #: workers in one job
    per_job: int
    #: deaths of a worker after which a task is given up
    max_attempts: int
    #: shared memory for large functions and arguments; None for none
    store: PayloadStore | None
    #: keeps failed tasks; None to keep none
    keeper: FailureKeeper | None
    #: makes the process object of a job, given the target number that its workers address
    make_process: Callable[[int], Any]


class WorkerGroup:
    """Equal workers with their dispatcher; started by the first call, ended by :meth:`retire`.

    It is the dispatcher's :class:`~fiber._tasks.dispatcher.WorkerObserver`.
    """

    def __init__(
        self, runtime: Runtime, spec: WorkerSpec, options: GroupOptions, *, name: str
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._options = options
        self._name = name
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._backlog_since: float | None = None
        self._closing = False
        self._processes: dict[Child, Any] = {}
        # identities of the last workers that have ended
        self._ended_workers: deque[str] = deque(maxlen=4096)
        #: what notes its tasks, by whom that belongs to
        self._tracers: dict[object, Tracer] = {}
        #: managers of former workers that are on their way out
        self._retiring: list[WorkerManager] = []
        #: the error that keeps its workers from starting, if any
        self.error: BaseException | None = None
        self.target = runtime.new_target()
        self.dispatcher = Dispatcher(
            self.target,
            runtime.reactor,
            max_attempts=options.max_attempts,
            maxtasksperchild=options.maxtasksperchild,
            observer=self,
            store=options.store,
            keeper=options.keeper,
        )
        runtime.endpoint.serve(self.target, self.dispatcher)
        runtime.own(self)
        self.manager = self._new_manager()
        self._began = False

    def begin(self) -> None:
        """Start the workers unless they are started.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        with self._lock:
            if self._began or self._closing:
                return
            self._began = True
            try:
                self.manager.begin(self._options.size)
            except BaseException:
                self._began = False
                raise
        if self._options.min_size != self._options.max_size and self._timer is None:
            self._autoscale()

    @property
    def name(self) -> str:
        """Name for people: that of its pool or executor, and a number from the second group on."""
        return self._name

    @property
    def is_here(self) -> bool:
        """True where the numbers of its processes are those of this host."""
        return self._runtime.info.capabilities.fork

    def trace(self, owner: object, tracer: Tracer | None) -> None:
        """Set the tracer of an owner, which records what is done from now on; None to end that."""
        with self.dispatcher.lock:
            self._tracers.pop(owner, None)
            if tracer is not None:
                self._tracers[owner] = tracer
            found = tuple(self._tracers.values())
            self.dispatcher.tracer = Tracers(found) if found[1:] else found[0] if found else None

    def records(self) -> list[WorkerRecord]:
        """The workers that have not ended, those of former managers, too."""
        return [one for m in (*self._retiring, self.manager) for one in m.workers()]

    @property
    def timing(self) -> Timing:
        """Durations of the run."""
        return self._runtime.timing

    @property
    def began(self) -> bool:
        """True once workers were started."""
        return self._began

    def stop_workers(self) -> None:
        """Retire all workers until the next :meth:`begin`; for workers that were never used."""
        with self._lock:
            if not self._began:
                return
            self._began = False
            manager, self.manager = self.manager, self._new_manager()
            self._retiring.append(manager)
        manager.close()

    def resize(self, size: int) -> None:
        """Keep ``size`` workers from now on; those in surplus finish what they hold."""
        self.manager.resize(size)

    def interrupt(self, call: Call) -> None:
        """End a call that its caller was interrupted in, and what runs of it.

        A task that goes on for longer than ``Timing.interrupted`` has its worker replaced.
        """
        self.dispatcher.cancel(call)
        self._replace_running_later(call)

    def _replace_running_later(self, call: Call) -> None:
        delay = self._runtime.timing.interrupted
        self._runtime.reactor.call_later(delay, lambda: self._replace_running(call))

    def _replace_running(self, call: Call) -> None:
        if self._closing:
            return
        running, behind = self.dispatcher.holders(call)
        replaced = [one for ident in running if (one := self._manager_of(ident).replace(ident))]
        if replaced:
            log.warning(
                "fiber: %s: interrupted: replacing %s, whose tasks went on",
                self._name,
                names_of(replaced),
            )
        if running or behind:
            # those behind the tasks of other calls may begin
            self._replace_running_later(call)

    def retire(self) -> None:
        """Retire every worker; no call may be queued any more."""
        self._stop_autoscaling()
        for manager in (*self._retiring, self.manager):
            manager.close()

    def terminate(self) -> None:
        """End every worker at once."""
        self._stop_autoscaling()
        for manager in (*self._retiring, self.manager):
            manager.terminate()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until no worker is left; True where none is."""
        if timeout is None:
            if self.join(self._runtime.timing.wait_report):
                return True
            left = self.records()
            if left:
                log.warning(
                    "fiber: %s: waiting for %s to end; has a task left a thread that is no daemon?",
                    self._name,
                    names_of(left),
                )
        deadline = Deadline(timeout)
        if not all(manager.join(deadline.left) for manager in (*self._retiring, self.manager)):
            return False
        self._withdraw()
        return True

    def close(self) -> None:
        """End calls and workers, because the program or its parent ends."""
        self.dispatcher.end(TerminatedError("the program ended before the task was done"))
        self.terminate()
        self.join(self._runtime.timing.worker_exit)

    def _withdraw(self) -> None:
        self._runtime.endpoint.withdraw(self.target)
        self._runtime.disown(self)
        self.dispatcher.close()

    def _new_manager(self) -> WorkerManager:
        return WorkerManager(
            start=self._start,
            takes_many=lambda: self._runtime.launcher.takes_many,
            lost=self._lost,
            retire=self.dispatcher.drain,
            fail=self._fail,
            ended=self._ended,
            lease=self._runtime.lease,
            per_job=self._options.per_job,
            name=f"fiber-{self._name}",
            timing=self._runtime.timing,
            # a remote worker may lose its connection and make another one
            exit_report_timeout=None
            if self._runtime.info.capabilities.fork
            else self._runtime.lease + 1,
        )

    def _ended(self) -> None:
        # nothing joins the workers of a pool that was collected
        if self._closing and not self.records():
            self._withdraw()

    # -- WorkerObserver, called by the dispatcher

    def accepts(self, ident: str) -> bool:
        """True where the process is one of these workers or may be one being started."""
        return any(manager.accepts(ident) for manager in (self.manager, *self._retiring))

    def has_ended(self, ident: str) -> bool:
        """True for a process that was one of these workers, of those that have ended of late."""
        return ident in self._ended_workers

    def worker_ready(self, ident: str) -> None:
        """A worker asked for work for the first time."""
        self._manager_of(ident).worker_ready(ident)

    def initializer_failed(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed."""
        self._manager_of(ident).initializer_failed(ident, error)

    def worker_disconnected(self, ident: str) -> None:
        """A worker's connection ended."""
        manager = self._manager_of(ident)
        if manager.has(ident):
            manager.worker_disconnected(ident)
        else:
            # it was taken for one that was being started: no end of it will be reported
            self.dispatcher.lost(ident, None, counts=False)

    def worker_retired(self, ident: str) -> None:
        """A worker was sent RETIRE."""
        self._manager_of(ident).worker_retired(ident)

    def _manager_of(self, ident: str) -> WorkerManager:
        return next((manager for manager in self._retiring if manager.has(ident)), self.manager)

    # -- called by the manager

    def _start(
        self, counts: Sequence[int], on_status: Callable[[Child, JobStatus], None], waits: bool
    ) -> Sequence[Child | BaseException]:
        processes = [self._options.make_process(self.target) for _ in counts]
        jobs = [
            (process, self._options_of(count, on_status))
            for process, count in zip(processes, counts, strict=True)
        ]
        found = self._runtime.launcher.launch_many(jobs, waits=waits)
        for process, child in zip(processes, found, strict=True):
            if not isinstance(child, BaseException):
                self._processes[child] = process
        return found

    def _options_of(
        self, count: int, on_status: Callable[[Child, JobStatus], None]
    ) -> dict[str, Any]:
        return {
            "on_status": on_status,
            "resources": self._spec.resources,
            "image": self._spec.image,
            "processes": count,
            "drains": True,
        }

    def processes(self) -> list[Any]:
        """The process objects of the workers that have not ended."""
        return [process for child, process in list(self._processes.items()) if child.poll() is None]

    def _lost(self, loss: Loss) -> None:
        self._ended_workers.append(loss.ident)
        requeued, abandoned = self.dispatcher.lost(loss.ident, loss.attempt, counts=loss.counts)
        if loss.child.poll() is not None:
            process = self._processes.pop(loss.child, None)
            if process is not None:
                # this call takes it out of the program's active children
                process.is_alive()
        if not loss.expected or requeued or abandoned:
            self._runtime.notify(
                "fiber_worker_lost",
                worker=loss.attempt.worker,
                cause=loss.attempt.reason,
                requeued=requeued,
                abandoned=abandoned,
            )

    def _fail(self, error: BaseException) -> None:
        self.error = error
        self.dispatcher.end(error)

    # -- growing and shrinking, polled: there is no event for "nothing happened for so long"

    def _autoscale(self) -> None:
        if self._closing:
            return
        config = self._runtime.config
        table, now = self.dispatcher.table, time.monotonic()
        if table.queued and not table.idle and self.manager.size < self._options.max_size:
            if self._backlog_since is None:
                self._backlog_since = now
            elif now - self._backlog_since >= config.grow_after:
                room = self._options.max_size - self.manager.size
                self.manager.resize(self.manager.size + min(room, max(1, self.manager.size)))
                self._backlog_since = None
        else:
            self._backlog_since = None
            self._shrink(config.shrink_after)
        interval = self._runtime.timing.autoscale
        self._timer = self._runtime.reactor.call_later(interval, self._autoscale)

    def _shrink(self, after: float) -> None:
        if self.manager.size <= self._options.min_size:
            return
        found = self.dispatcher.longest_idle()
        if found is not None and found[1] >= after:
            self.manager.release(found[0])

    def _stop_autoscaling(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()


_numbers = itertools.count(1)
#: workers for each CPU of this host above which they wait for each other more than for tasks
CROWD = 64


def _is_crowd(workers: int) -> bool:
    """True where so many workers would be far more than the CPUs of this host."""
    if workers <= CROWD:
        return False
    # imported when used: few pools are that large
    from fiber._base.cgroups import cpu_count

    return workers > CROWD * cpu_count()


class WorkerGroups:
    """The groups of one pool or executor, by what its functions ask for. Thread-safe.

    Args:
        options: of the pool or executor.
        kind: first part of its name: ``pool`` or ``executor``.

    Raises:
        TypeError: the initializer cannot be called, or a number has another type.
        ValueError: a number makes no sense.
    """

    def __init__(self, options: PoolOptions, kind: str) -> None:
        self._runtime = ready_runtime(options.validate)
        size, min_size, max_size = options.validate(self._runtime)
        initializer, args = options.initializer, tuple(options.initargs)
        # one that grows begins as a small one, whose workers would wait for their turn beside other programs
        is_crowd = _is_crowd(size)
        self._error_handling = options.error_handling
        self._context = self._context_of_caller()
        self._name = f"{kind}-{next(_numbers)}"
        #: prefix of the names of its threads
        self.name = f"fiber-{self._name}"
        self._options = GroupOptions(
            size=size,
            min_size=min_size,
            max_size=max_size,
            maxtasksperchild=options.maxtasksperchild,
            per_job=options.per_job,
            max_attempts=options.max_attempts or self._runtime.config.max_attempts,
            store=SealedPayloadStore(self._runtime),
            keeper=self._keeper(options),
            make_process=lambda target: PoolWorker(
                target, initializer, args, task_errors=options.task_errors, is_crowd=is_crowd
            ),
        )
        #: workers at first
        self.initial_size = size
        self._lock = threading.RLock()
        self._refusal: BaseException | None = None
        self._default = self._spec(initializer)
        self._used_default = False
        self._groups: dict[tuple[Any, ...], WorkerGroup] = {}
        #: runs users' callbacks
        self.callbacks = CallbackThread(f"{self.name}-callbacks")

    def begin(self) -> None:
        """Start the first workers.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        flush_standard_streams()
        with brief_errors():
            group = self._groups[self._default.key] = self._new_group(self._default)
            try:
                group.begin()
            except BaseException:
                group.terminate()
                group.join()
                raise

    def end_with(self, owner: object) -> util.Finalize:
        """End everything at once when ``owner`` is collected, or the program exits."""
        args = (self._groups, self.callbacks, self._options.keeper, self._runtime.timing)
        return util.Finalize(owner, _end, args=args, exitpriority=15)

    # -- what it is

    @property
    def has_spans(self) -> bool:
        """True where each call carries its caller's context."""
        return self._context is not None

    @property
    def size(self) -> int:
        """Workers that are kept, of all groups."""
        return sum(group.manager.size for group in self._groups.values())

    def processes(self) -> list[Any]:
        """The workers' process objects."""
        return [process for group in self._groups.values() for process in group.processes()]

    # -- work

    def refuse(self, refusal: BaseException) -> None:
        """Take no more calls: adding one raises a copy of this exception; the first one counts."""
        with self._lock:
            self._refusal = self._refusal or refusal

    def check(self) -> None:
        """Raise where no more calls are taken."""
        refusal = self._refusal
        if refusal is not None:
            # a new one for each caller, so that tracebacks do not pile up
            raise type(refusal)(*refusal.args)

    def prepare(
        self,
        func: Any,
        mode: Mode,
        sink: Sink,
        items: list[Any] | None,
        chunk: int | None = None,
        *,
        one_by_one: bool = False,
        on_dispatch: Callable[[int, int], None] | None = None,
    ) -> tuple[WorkerGroup, Call | None]:
        """Make a call to be added, and its group; None where the function cannot be pickled.

        That error goes to the sink. ``chunk`` is None where the program did not choose it.

        Raises:
            Exception: no more calls are taken, or no worker can be kept alive.
        """
        meta = hints.get_meta(func)
        group = self._group_for(func, meta)
        try:
            call = group.dispatcher.prepare(
                func,
                mode,
                sink,
                items=items,
                chunksize=chunk,
                retry=self._error_handling if meta.retry is None else meta.retry,
                one_by_one=one_by_one,
                on_dispatch=on_dispatch,
            )
            if self._context is not None:
                call.context = self._context()
        except Exception as error:
            # a function that cannot be pickled is a failed task, as in multiprocessing
            sink.broken(error)
            return group, None
        return group, call

    def add(
        self,
        func: Any,
        mode: Mode,
        sink: Sink,
        items: list[Any] | None,
        chunk: int | None = None,
        *,
        one_by_one: bool = False,
    ) -> tuple[WorkerGroup, Call | None]:
        """Like :meth:`prepare`, and add the call to its group."""
        group, call = self.prepare(func, mode, sink, items, chunk, one_by_one=one_by_one)
        if call is not None:
            group.dispatcher.add(call)
        return group, call

    # -- its life

    def resize(self, processes: int) -> None:
        """Keep ``processes`` workers in each group from now on."""
        require_positive("processes", processes)
        with self._lock:
            self.check()
            for group in self._groups.values():
                if group.began:
                    group.resize(processes)

    def join(self) -> None:
        """Wait until all calls are done and the workers have ended; after :meth:`refuse`."""
        groups = list(self._groups.values())
        for group in groups:
            group.dispatcher.wait_drained(self._refusal or TerminatedError("this has ended"))
        for group in groups:
            group.retire()
        for group in groups:
            group.join()
        self.callbacks.close()
        if self._options.keeper is not None:
            self._options.keeper.close()

    # -- inside

    def _context_of_caller(self) -> Callable[[], bytes] | None:
        if not self._runtime.config.otel:
            return None
        load_object("fiber._watch.spans:require")()
        context: Callable[[], bytes] = load_object("fiber._watch.spans:context_of_caller")
        return context

    def _keeper(self, options: PoolOptions) -> FailureKeeper | None:
        wanted = options.keep_failed
        if not (self._runtime.config.keep_failed if wanted is None else wanted):
            return None
        # few programs keep any
        from fiber._workers.kept_tasks import Keeper

        return Keeper(self._runtime, f"{self.name}-keeper")

    def _spec(self, function: Any) -> WorkerSpec:
        meta = hints.get_meta(function)
        return WorkerSpec(resources=requested(meta, self._runtime), image=meta.image)

    def _new_group(self, spec: WorkerSpec) -> WorkerGroup:
        name = self._name if not self._groups else f"{self._name}.{len(self._groups)}"
        traces = self._runtime.started_traces()
        group = WorkerGroup(self._runtime, spec, self._options, name=name)
        for trace in traces:
            group.trace(trace, trace.of(group))
        return group

    def _group_for(self, function: Any, meta: hints.Meta) -> WorkerGroup:
        """The group with the resources that a function asks for; the first one for no request."""
        spec = self._spec(function) if meta.asks else self._default
        with self._lock:
            self.check()
            group = self._groups.get(spec.key)
            if group is None:
                group = self._groups[spec.key] = self._new_group(spec)
            default = self._groups[self._default.key]
            if group is default:
                self._used_default = True
            elif not self._used_default:
                # the first workers are unused and hold resources that the new group may need
                default.stop_workers()
        group.begin()
        if group.error is not None:
            raise group.error
        return group


def _end(
    groups: dict[tuple[Any, ...], WorkerGroup],
    callbacks: CallbackThread,
    keeper: FailureKeeper | None,
    timing: Timing,
) -> None:
    """Finalizer: end everything when the owner is terminated or collected, or the program exits."""
    for group in list(groups.values()):
        group.dispatcher.end(TerminatedError("the pool was terminated before the task was done"))
        group.terminate()
    # an owner may be collected on any thread; one of Fiber's would wait for itself
    waits = not threading.current_thread().name.startswith("fiber-")
    for group in list(groups.values()):
        group.join(timing.worker_exit if waits else 0)
    callbacks.close(timing.callback if waits else 0)
    if keeper is not None:
        keeper.close(waits=waits)
