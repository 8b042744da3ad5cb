"""Workers of one kind and what they are given to do: a dispatcher and the fleet behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from fiber.dispatch.master import Dispatcher
from fiber.launch.child import Child
from fiber.launch.fleet import Fleet
from fiber.model import JobStatus, Reason, ReasonKind, ResourceRequest
from fiber.model.task import Attempt

if TYPE_CHECKING:
    from fiber.runtime import Runtime
    from fiber.transport.reactor import Timer

#: seconds between looks at an elastic crew
_LOOK = 0.25


@attrs.frozen(kw_only=True)
class Needs:
    """What the workers of a crew get; crews differ by it."""

    #: cpu, memory, devices
    resources: ResourceRequest = attrs.field(factory=ResourceRequest)
    #: image, where the backend runs images
    image: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal needs."""
        devices = tuple(sorted(self.resources.devices.items()))
        return self.resources.cpu, self.resources.memory, devices, self.image


@attrs.frozen(kw_only=True)
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
    #: makes the process object of a job's workers, given the target that they address
    make_process: Callable[[int], Any]


class Crew:
    """Starts its workers with its first call, and ends them with :meth:`close`."""

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
        #: why it cannot go on, if it cannot
        self.error: BaseException | None = None
        self.target = runtime.new_target()
        self.dispatcher = Dispatcher(
            self.target,
            runtime.reactor,
            max_attempts=options.max_attempts,
            quota=options.quota,
            staff=self,
        )
        runtime.endpoint.serve(self.target, self.dispatcher)
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
        if self._options.least != self._options.most:
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
        for ident in fleet.resize(0):
            if not self.dispatcher.drain(ident):
                fleet.end(ident)
        fleet.close()

    def resize(self, size: int) -> None:
        """Keep so many workers from now on; those in surplus finish what they hold."""
        for ident in self.fleet.resize(size):
            if not self.dispatcher.drain(ident):
                self.fleet.end(ident)

    def close(self) -> None:
        """Retire every worker; nothing may be queued any more."""
        self._stop_looking()
        self.resize(0)
        self.fleet.close()

    def terminate(self) -> None:
        """End every worker at once."""
        self._stop_looking()
        self.fleet.terminate()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until no worker is left; True where none is."""
        gone = not self._began or self.fleet.join(timeout)
        if gone:
            self._runtime.endpoint.withdraw(self.target)
            self.dispatcher.close()
        return gone

    def _new_fleet(self) -> Fleet:
        return Fleet(
            start=self._start,
            lost=self._lost,
            fail=self._fail,
            lease=self._runtime.lease,
            per_job=self._options.per_job,
            name=f"fiber-{self._name}",
        )

    # -- what the dispatcher tells

    def knows(self, ident: str) -> bool:
        """True where the process is one of these workers."""
        return self.fleet.knows(ident)

    def is_up(self, ident: str) -> None:
        """A worker asked for work for the first time."""
        self.fleet.is_up(ident)
        if any(m.ident == ident and m.leaving for m in self.fleet.members()):
            self.dispatcher.drain(ident)

    def is_broken(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed."""
        self.fleet.is_broken(ident, error)

    def is_cut(self, ident: str) -> None:
        """A worker's connection ended."""
        self.fleet.is_cut(ident)

    def is_retired(self, ident: str) -> None:
        """A worker was told to exit."""

    def _start(self, count: int, on_status: Callable[[Child, JobStatus], None]) -> Child:
        process = self._options.make_process(self.target)
        child = self._runtime.launcher.launch(
            process,
            resources=self._needs.resources,
            image=self._needs.image,
            processes=count,
            on_status=on_status,
        )
        process.started_as(child)
        self._processes[child] = process
        return child

    def processes(self) -> list[Any]:
        """The process objects of the workers that have not ended."""
        alive = {member.child for member in self.fleet.members()}
        self._processes = {c: p for c, p in list(self._processes.items()) if c in alive}
        return list(self._processes.values())

    def _lost(self, ident: str, attempt: Attempt | None, counts: bool) -> None:
        requeued, abandoned = self.dispatcher.lost(ident, attempt, counts=counts)
        self._runtime.notify(
            "fiber_worker_lost",
            worker=ident,
            cause=attempt.reason if attempt is not None else Reason(ReasonKind.UNKNOWN),
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
            self.dispatcher.drain(found[0])

    def _stop_looking(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
