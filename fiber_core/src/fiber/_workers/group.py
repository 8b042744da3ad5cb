"""Workers of one kind and what they are given to do: a dispatcher and the fleet behind it.

The workers behind a pool or an executor: a crew for each set of needs, and what is added to them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from fiber import hints
from fiber._base import values
from fiber._base.serial_executor import Callbacks
from fiber._launch.child import Child
from fiber._runtime.start import flush_standard_streams, starting
from fiber._tasks.call import Call, Sink
from fiber._tasks.dispatcher import Dispatcher
from fiber._tasks.protocol import Mode
from fiber._tasks.shared_payload import Memory
from fiber._workers.manager import Fleet
from fiber._workers.options import PoolMemory, Wish, require_positive
from fiber._workers.pool_process import PoolWorker
from fiber._workers.state import Loss
from fiber.exceptions import TerminatedError
from fiber.model import JobStatus, ResourceRequest
from fiber.process import requested

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime
    from fiber._wire.reactor import Timer

#: seconds between looks at an elastic crew
_LOOK = 0.25


@values.frozen(kw_only=True)
class Needs:
    """What the workers of a crew get; crews differ by it."""

    #: cpu, memory, devices
    resources: ResourceRequest = values.field(factory=ResourceRequest)
    #: image, where the backend runs images
    image: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal needs."""
        devices = tuple(sorted(self.resources.devices.items()))
        return self.resources.cpu, self.resources.memory, devices, self.image


@values.frozen(kw_only=True)
class CrewOptions:
    """What a pool was made with."""

    #: workers at first
    size: int
    #: fewest and most workers; equal to ``size`` where the pool is not elastic
    least: int
    most: int
    #: units in a worker's life
    quota: int | None
    #: workers in one job
    per_job: int
    #: deaths of a worker after which a task is given up
    max_attempts: int
    #: where large functions are laid for workers on this host
    memory: Memory | None
    #: makes the process object of a job's workers, given the target that they address
    make_process: Callable[[int], Any]


class Crew:
    """Starts its workers with its first call, and ends them with :meth:`retire`."""

    def __init__(self, runtime: Runtime, needs: Needs, options: CrewOptions, *, name: str) -> None:
        self._runtime = runtime
        self._needs = needs
        self._options = options
        self._name = name
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._thirst_since: float | None = None
        self._closing = False
        self._processes: dict[Child, Any] = {}
        #: former workers on their way out
        self._resting: list[Fleet] = []
        #: why it cannot go on, if it cannot
        self.error: BaseException | None = None
        self.target = runtime.new_target()
        self.dispatcher = Dispatcher(
            self.target,
            runtime.reactor,
            max_attempts=options.max_attempts,
            quota=options.quota,
            staff=self,
            memory=options.memory,
        )
        runtime.endpoint.serve(self.target, self.dispatcher)
        runtime.own(self)
        self.fleet = self._new_fleet()
        self._began = False

    def begin(self) -> None:
        """Start the workers, where that has not been done.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        with self._lock:
            if self._began or self._closing:
                return
            self._began = True
            try:
                self.fleet.begin(self._options.size)
            except BaseException:
                self._began = False
                raise
        if self._options.least != self._options.most and self._timer is None:
            self._look()

    @property
    def began(self) -> bool:
        """True once workers were started."""
        return self._began

    def rest(self) -> None:
        """Let all workers go until the next :meth:`begin`: nobody has used them so far."""
        with self._lock:
            if not self._began:
                return
            self._began = False
            fleet, self.fleet = self.fleet, self._new_fleet()
            self._resting.append(fleet)
        fleet.close()

    def resize(self, size: int) -> None:
        """Keep so many workers from now on; those in surplus finish what they hold."""
        self.fleet.resize(size)

    def retire(self) -> None:
        """Let every worker go; nothing may be queued any more."""
        self._stop_looking()
        for fleet in (*self._resting, self.fleet):
            fleet.close()

    def terminate(self) -> None:
        """End every worker at once."""
        self._stop_looking()
        for fleet in (*self._resting, self.fleet):
            fleet.terminate()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until no worker is left; True where none is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for fleet in (*self._resting, self.fleet):
            if not fleet.join(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return False
        self._withdraw()
        return True

    def close(self) -> None:
        """End everything, because the program or its parent does."""
        self.dispatcher.end(TerminatedError("the program ended before the task was done"))
        self.terminate()
        self.join(10)

    def _withdraw(self) -> None:
        self._runtime.endpoint.withdraw(self.target)
        self._runtime.disown(self)
        self.dispatcher.close()

    def _new_fleet(self) -> Fleet:
        return Fleet(
            start=self._start,
            lost=self._lost,
            retire=self.dispatcher.drain,
            fail=self._fail,
            ended=self._ended,
            lease=self._runtime.lease,
            per_job=self._options.per_job,
            name=f"fiber-{self._name}",
            # a remote worker may lose its connection and make another one
            verdict=None if self._runtime.info.capabilities.fork else self._runtime.lease + 1,
        )

    def _ended(self) -> None:
        # of a pool that was collected nobody waits for the end
        if self._closing and not any(fleet.members() for fleet in (*self._resting, self.fleet)):
            self._withdraw()

    # -- what the dispatcher tells

    def knows(self, ident: str) -> bool:
        """True where the process is one of these workers."""
        return any(fleet.knows(ident) for fleet in (self.fleet, *self._resting))

    def is_up(self, ident: str) -> None:
        """A worker asked for work for the first time."""
        self._fleet_of(ident).is_up(ident)

    def is_broken(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed."""
        self._fleet_of(ident).is_broken(ident, error)

    def is_cut(self, ident: str) -> None:
        """A worker's connection ended."""
        fleet = self._fleet_of(ident)
        if fleet.has(ident):
            fleet.is_cut(ident)
        else:
            # its end was told before its first words were read, and nobody will tell it again
            self.dispatcher.lost(ident, None, counts=False)

    def is_retired(self, ident: str) -> None:
        """A worker was told to exit."""
        self._fleet_of(ident).is_retired(ident)

    def _fleet_of(self, ident: str) -> Fleet:
        return next((fleet for fleet in self._resting if fleet.has(ident)), self.fleet)

    # -- what the fleet tells

    def _start(
        self, count: int, on_status: Callable[[Child, JobStatus], None], waits: bool
    ) -> Child:
        process = self._options.make_process(self.target)
        child = self._runtime.launcher.launch(
            process,
            resources=self._needs.resources,
            image=self._needs.image,
            processes=count,
            drains=True,
            waits=waits,
            on_status=on_status,
        )
        process.started_as(child)
        self._processes[child] = process
        return child

    def processes(self) -> list[Any]:
        """The process objects of the workers that have not ended."""
        return [process for child, process in list(self._processes.items()) if child.poll() is None]

    def _lost(self, loss: Loss) -> None:
        requeued, abandoned = self.dispatcher.lost(loss.ident, loss.attempt, counts=loss.counts)
        if loss.child.poll() is not None:
            process = self._processes.pop(loss.child, None)
            if process is not None:
                # asked, it takes itself out of the program's active children
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

    # -- growing and shrinking; there is no event for "nothing happened for so long"

    def _look(self) -> None:
        if self._closing:
            return
        config = self._runtime.config
        table, now = self.dispatcher.table, time.monotonic()
        if table.queued and not table.idle and self.fleet.size < self._options.most:
            if self._thirst_since is None:
                self._thirst_since = now
            elif now - self._thirst_since >= config.grow_after:
                room = self._options.most - self.fleet.size
                self.fleet.resize(self.fleet.size + min(room, max(1, self.fleet.size)))
                self._thirst_since = None
        else:
            self._thirst_since = None
            self._shrink(config.shrink_after)
        self._timer = self._runtime.reactor.call_later(_LOOK, self._look)

    def _shrink(self, after: float) -> None:
        if self.fleet.size <= self._options.least:
            return
        found = self.dispatcher.longest_idle()
        if found is not None and found[1] >= after:
            self.fleet.release(found[0])

    def _stop_looking(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()


_numbers = itertools.count(1)


class Workforce:
    """Crews by what functions ask for. Thread-safe.

    Args:
        wish: what its owner was made with.
        kind: first part of its name.

    Raises:
        TypeError: the initializer cannot be called, or a number is none.
        ValueError: a number makes no sense.
    """

    def __init__(self, wish: Wish, kind: str) -> None:
        self._runtime = starting(wish.judge)
        size, least, most = wish.judge(self._runtime)
        initializer, args = wish.initializer, tuple(wish.initargs)
        self._error_handling = wish.error_handling
        self._options = CrewOptions(
            size=size,
            least=least,
            most=most,
            quota=wish.quota,
            per_job=wish.per_job,
            max_attempts=wish.max_attempts or self._runtime.config.max_attempts,
            memory=PoolMemory(self._runtime),
            make_process=lambda target: PoolWorker(target, initializer, args),
        )
        self._name = f"{kind}-{next(_numbers)}"
        #: of its threads
        self.name = f"fiber-{self._name}"
        #: workers that it is to have at first
        self.wanted = size
        self._lock = threading.RLock()
        self._refusal: BaseException | None = None
        self._default = self._needs(initializer)
        self._used_default = False
        self._crews: dict[tuple[Any, ...], Crew] = {}
        #: runs users' callbacks
        self.callbacks = Callbacks(f"{self.name}-callbacks")

    def begin(self) -> None:
        """Start the first workers.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        flush_standard_streams()
        crew = self._crews[self._default.key] = self._new_crew(self._default)
        try:
            crew.begin()
        except BaseException:
            crew.terminate()
            crew.join()
            raise

    def end_with(self, owner: object) -> util.Finalize:
        """Have everything ended at once when ``owner`` is collected, or the program exits."""
        return util.Finalize(owner, _end, args=(self._crews, self.callbacks), exitpriority=15)

    # -- what it is

    @property
    def size(self) -> int:
        """Workers that are kept."""
        return sum(crew.fleet.size for crew in self._crews.values())

    def processes(self) -> list[Any]:
        """The workers' process objects."""
        return [process for crew in self._crews.values() for process in crew.processes()]

    # -- work

    def refuse(self, refusal: BaseException) -> None:
        """Take no more calls: whoever adds one gets an exception like this; the first one counts."""
        with self._lock:
            self._refusal = self._refusal or refusal

    def check(self) -> None:
        """Raise where no more calls are taken."""
        refusal = self._refusal
        if refusal is not None:
            # one of its own for each caller, so that tracebacks do not pile up
            raise type(refusal)(*refusal.args)

    def prepare(
        self,
        func: Any,
        mode: Mode,
        sink: Sink,
        items: list[Any] | None,
        chunk: int = 1,
        begun: Callable[[int, int], None] | None = None,
    ) -> tuple[Crew, Call | None]:
        """A call that is yet to be added; a function that cannot be pickled breaks its sink.

        Raises:
            Exception: no more calls are taken, or no worker can be kept alive.
        """
        meta = hints.get_meta(func)
        crew = self._crew(func, meta)
        try:
            call = crew.dispatcher.prepare(
                func,
                mode,
                sink,
                items=items,
                chunksize=None if chunk == 1 else chunk,
                retry=self._error_handling if meta.retry is None else meta.retry,
                begun=begun,
            )
        except Exception as error:
            # a function that cannot be pickled is a failed task, as in multiprocessing
            sink.broken(error)
            return crew, None
        return crew, call

    def add(
        self, func: Any, mode: Mode, sink: Sink, items: list[Any] | None, chunk: int = 1
    ) -> tuple[Crew, Call | None]:
        """The same, added."""
        crew, call = self.prepare(func, mode, sink, items, chunk)
        if call is not None:
            crew.dispatcher.add(call)
        return crew, call

    # -- its life

    def resize(self, processes: int) -> None:
        """Keep so many workers of each crew from now on."""
        require_positive("processes", processes)
        with self._lock:
            self.check()
            for crew in self._crews.values():
                if crew.began:
                    crew.resize(processes)

    def join(self) -> None:
        """Wait until all is done and the workers have ended; see :meth:`refuse`."""
        crews = list(self._crews.values())
        for crew in crews:
            crew.dispatcher.wait_drained(self._refusal or TerminatedError("this has ended"))
        for crew in crews:
            crew.retire()
        for crew in crews:
            crew.join()
        self.callbacks.close()

    # -- inside

    def _needs(self, function: Any) -> Needs:
        meta = hints.get_meta(function)
        return Needs(resources=requested(meta, self._runtime), image=meta.image)

    def _new_crew(self, needs: Needs) -> Crew:
        name = self._name if not self._crews else f"{self._name}.{len(self._crews)}"
        return Crew(self._runtime, needs, self._options, name=name)

    def _crew(self, function: Any, meta: hints.Meta) -> Crew:
        """The workers that have what a function asks for; the first ones where it asks nothing."""
        needs = self._needs(function) if meta.asks else self._default
        with self._lock:
            self.check()
            crew = self._crews.get(needs.key)
            if crew is None:
                crew = self._crews[needs.key] = self._new_crew(needs)
            default = self._crews[self._default.key]
            if crew is default:
                self._used_default = True
            elif not self._used_default:
                # nobody has used the first workers, and they hold what these may need
                default.rest()
        crew.begin()
        if crew.error is not None:
            raise crew.error
        return crew


def _end(crews: dict[tuple[Any, ...], Crew], callbacks: Callbacks) -> None:
    """What becomes of it when its owner is terminated or collected, or the program exits."""
    for crew in list(crews.values()):
        crew.dispatcher.end(TerminatedError("the pool was terminated before the task was done"))
        crew.terminate()
    # an owner may be collected on any thread; one of ours would wait for itself
    waits = not threading.current_thread().name.startswith("fiber-")
    for crew in list(crews.values()):
        crew.join(10 if waits else 0)
    callbacks.close(1 if waits else 0)
