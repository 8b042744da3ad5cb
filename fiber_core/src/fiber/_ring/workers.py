"""Handles of a ring's workers (job, pipes, messages so far), and the threads that start jobs.

Calls to the platform block, so :class:`JobThreads` makes them off the controller's thread.
:class:`WorkerHandle` is used on the controller's thread alone.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base import values
from fiber._ring.events import Command, Event, StartWorker
from fiber._ring.model import Failure, Group
from fiber._ring.protocol import Hello, Leave, Raised, StateReply
from fiber.connection import Connection, Pipe
from fiber.exceptions import FiberError
from fiber.model import Gang, JobState
from fiber.process import Process

if TYPE_CHECKING:
    from fiber._base.threads import Timer
    from fiber._launch.child import Child
    from fiber._ring.controller import RingController
    from fiber._ring.member import MemberThread
    from fiber._runtime.runtime import Runtime
    from fiber.model import JobStatus

log = logging.getLogger("fiber")

#: calls to the platform at once
_MAX_THREADS = 16


@values.frozen(kw_only=True)
class Connections:
    """What a :class:`GangProtocol` has of its controller."""

    #: all workers, by number
    handles: Mapping[int, WorkerHandle]
    #: fewest and most ranks of a live ring; None for others
    bounds: tuple[int, int] | None
    #: passes an event to the machine
    feed: Callable[[Event], None]
    #: calls a function later, on the controller's thread
    call_later: Callable[[float, Callable[[], Any]], Timer]


class GangProtocol(Protocol):
    """What the workers of a gang are, and what they are told and say: those of a ring or of an mpirun.

    All methods but :meth:`process` are called on the controller's thread.
    """

    #: name of the gang
    name: str
    #: True where members run no code of the user's themselves, and so always listen
    are_agents: bool

    def connect(self, connections: Connections) -> None:
        """Use these from now on."""

    def process(self, ends: list[Connection], seat: int) -> Process:
        """Return the process of a worker, which has one member for each end of a pipe."""

    def execute(self, command: Command) -> None:
        """Carry out a command about a round."""

    def receive(self, worker: WorkerHandle, slot: int, message: Any) -> None:
        """Process a message of a member that is neither a greeting nor a heartbeat."""

    def check_replies(self) -> None:
        """Check what is awaited, for a member is gone."""

    def located(self, failure: Failure, worker: WorkerHandle, slot: int | None) -> Failure:
        """Return a failure of a process with what its place in the gang adds."""

    def results(self) -> list[bytes]:
        """Return the pickled results, by rank."""


def jobs_of(commands: Sequence[Command]) -> list[StartWorker]:
    """The workers of a step that are jobs."""
    return [one for one in commands if isinstance(one, StartWorker) and not one.group.is_caller]


class JobThreads:
    """Thread pool for calls to the platform: submits and ends a ring's jobs.

    Args:
        runtime: of the process that starts the ring.
        gang: what the workers are.
        listener: receives the jobs' events.
        gang_timeout: seconds within which all workers of one step must be placed; None where
            fewer are enough, so that they are no gang.
    """

    def __init__(
        self,
        runtime: Runtime,
        gang: GangProtocol,
        listener: RingController,
        gang_timeout: float | None,
    ) -> None:
        self._gang_timeout = gang_timeout
        self._runtime = runtime
        self._gang = gang
        self._listener = listener
        self._is_closed = False
        # gang of each worker that is to be submitted
        self._gangs: dict[int, Gang] = {}
        # starts its threads with the first calls
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="fiber-ring-job")

    def assign_gangs(self, commands: Sequence[StartWorker]) -> None:
        """Make one gang of all workers that are started in one step."""
        numbers = [one.worker for one in commands]
        if numbers and self._gang_timeout is not None:
            name = f"{self._gang.name}-{numbers[0]}"
            gang = Gang(name=name, size=len(numbers), timeout=self._gang_timeout)
            self._gangs.update(dict.fromkeys(numbers, gang))

    def calls(self, commands: Sequence[StartWorker]) -> list[list[StartWorker]]:
        """The workers of one step by the calls that submit them.

        A gang is one call where the platform takes several jobs in one, which may make one of them.
        """
        is_gang = len(commands) > 1 and commands[0].worker in self._gangs
        if is_gang and self._runtime.launcher.takes_many:
            return [list(commands)]
        return [[one] for one in commands]

    def launch(self, commands: Sequence[StartWorker]) -> None:
        """Submit workers' jobs, in one call, on the calling thread.

        Raises:
            Exception: an error of pickling the spec; the platform's go to the listener.
        """
        made = [self._make(command) for command in commands]
        jobs = [(process, options) for process, options, _, _ in made]
        found: Sequence[Child | BaseException] = ()
        try:
            found = self._runtime.launcher.launch_many(jobs)
        except FiberError as error:
            found = [error] * len(jobs)
        finally:
            for _, _, ours, theirs in made:
                for end in (*theirs, *(() if found else ours)):
                    end.close()
        for command, (process, _, ours, _), child in zip(commands, made, found, strict=True):
            if isinstance(child, BaseException):
                for end in ours:
                    end.close()
                self._listener.not_launched(command.worker, child)
            else:
                self._listener.launched(command.worker, child, process, ours)

    def _make(
        self, command: StartWorker
    ) -> tuple[Process, dict[str, Any], list[Connection], list[Connection]]:
        """A worker's process, the options of its job, and the two ends of each pipe."""
        group, number = command.group, command.worker
        pairs = [Pipe() for _ in range(group.slots)]
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        process = self._gang.process(list(theirs), command.seat)
        options = {
            "resources": group.resources,
            "image": group.image,
            "volumes": group.volumes,
            "processes": group.slots,
            "gang": self._gangs.pop(number, None),
            "on_status": lambda child, status: self._listener.job_changed(number, child, status),
        }
        return process, options, ours, theirs

    def launch_in_background(self, commands: Sequence[StartWorker]) -> None:
        """Submit workers' jobs, in one call, on a thread of the pool."""
        self._threads.submit(self._launch_and_report, commands)

    def _launch_and_report(self, commands: Sequence[StartWorker]) -> None:
        try:
            self.launch(commands)
        except Exception as error:
            for command in commands:
                self._listener.not_launched(command.worker, error)

    def submit(self, action: Callable[[], None]) -> None:
        """Call a function on a thread of the pool, or directly once closed; errors are logged."""
        if self._is_closed:
            _try(action)
        else:
            self._threads.submit(_try, action)

    def close(self) -> None:
        """Wait for all calls; later ones are made on the calling thread."""
        self._is_closed = True
        self._threads.shutdown(wait=True)


def _try(action: Callable[[], None]) -> None:
    try:
        action()
    except FiberError as error:
        log.warning("fiber: a member could not be ended, and will be again: %s", error)


class WorkerHandle:
    """Controller's handle of a worker: its job, or the thread of the caller's own rank.

    Args:
        number: the machine's number of the worker.
        group: resources, image and number of ranks.
        is_agent: True where its members run no code of the user's themselves, and so always listen.
    """

    def __init__(self, number: int, group: Group, *, is_agent: bool = False) -> None:
        self.number = number
        self.group = group
        self.is_agent = is_agent
        #: controller's end of the pipe to each rank, by slot
        self.ends: list[Connection] = []
        #: the job, once accepted
        self.child: Child | None = None
        self.process: Any = None
        self.thread: MemberThread | None = None
        #: True where the job is to be killed as soon as it is accepted
        self.is_cancelled = False
        #: messages of its ranks, by slot
        self.hellos: dict[int, Hello] = {}
        self.returned: dict[int, bytes] = {}
        self.states: dict[int, StateReply] = {}
        self.raised: set[int] = set()
        #: slots whose pipe has ended
        self.closed_slots: set[int] = set()

    @property
    def is_idle(self) -> bool:
        """True where no rank runs user code any more, so that :meth:`leave` ends the worker."""
        if self.is_agent:
            return self.is_up
        return len(self.returned.keys() | self.raised) == self.group.slots

    @property
    def is_up(self) -> bool:
        """True once all ranks have connected."""
        return len(self.hellos) == self.group.slots

    def send(self, message: Any) -> None:
        """Send a message to all ranks; a lost rank is noticed by other means."""
        for slot in range(len(self.ends)):
            self.send_to(slot, message)

    def send_to(self, slot: int, message: Any) -> None:
        """Send a message to the rank of a slot."""
        with contextlib.suppress(OSError, EOFError):
            self.ends[slot].send(message)

    def leave(self) -> None:
        """Send all ranks the request to end, which those that run user code read later."""
        self.send(Leave())

    def end(self, submit: Callable[[Callable[[], None]], None], *, force: bool) -> bool:
        """Request the end of the worker.

        Args:
            submit: runs a blocking call on another thread.
            force: True to kill, where termination had no effect.

        Returns:
            False for a thread in user code, which cannot be ended.
        """
        if self.thread is not None:
            self.leave()
            if not self.is_idle:
                # the thread goes on until its function returns
                self.thread.restore()
                return False
        elif self.child is None:
            self.is_cancelled = True
        elif force:
            self.kill(submit)
        else:
            self.leave()
            if not self.is_idle:
                submit(self.child.terminate)
        return True

    def kill(self, submit: Callable[[Callable[[], None]], None]) -> None:
        """Kill the job."""
        if self.child is None:
            self.leave()
        elif self.child.poll() is None:
            submit(self.child.kill)

    def close(self) -> None:
        """Close the pipes, and remove the process from ``active_children()``."""
        for end in self.ends:
            end.close()
        if self.process is not None:
            # removes an ended process from the active children
            self.process.is_alive()


def failed_process(worker: WorkerHandle, status: JobStatus) -> tuple[int | None, Failure] | None:
    """Return slot and failure of the first rank whose process ended before its function returned.

    The slot is None where the platform reports the job as a whole; None for no failure at all.
    """
    child = worker.child
    host = "" if child is None else child.host
    for process in sorted(status.processes, key=lambda one: one.index):
        done = process.index in worker.returned or process.index in worker.raised
        if process.state.is_terminal and not done:
            return process.index, Failure(
                reason=str(process.reason) if process.reason else f"EXIT({process.exit_code})",
                message=process.message or status.message,
                host=host,
                log_tail=process.log_tail,
                exit_code=process.exit_code,
            )
    if status.state is not JobState.FAILED:
        return None
    failure = "" if child is None else child.failure
    slot = 0 if worker.group.slots == 1 else None
    return slot, Failure(
        reason=str(status.reason) if status.reason else "UNKNOWN",
        message=failure or status.message,
        host=status.host or host,
        exit_code=status.exit_code,
    )


def user_failure(message: Raised, rank: int | None, host: str) -> Failure:
    """Return the failure for an exception of user code."""
    try:
        error = pickle.loads(message.error)
    except Exception as failure:
        # a class that cannot be imported here; message and traceback are texts
        error = failure
    return Failure(
        reason="raised",
        message=message.message,
        rank=rank,
        host=host,
        traceback=message.traceback,
        error=error,
    )


def start_failure(error: BaseException) -> Failure:
    """Return the failure for a worker whose job was not accepted."""
    return Failure(reason=type(error).__name__, message=str(error), error=error)
