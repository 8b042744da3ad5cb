"""Handles of a gang's workers (job, pipes, messages so far), used on the controller's thread; and its protocol."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base import values
from fiber._ring.events import Command, Event
from fiber._ring.model import Failure, Group
from fiber._ring.protocol import Hello, Leave, Raised, StateReply
from fiber.connection import Connection
from fiber.model import JobState
from fiber.process import Process

if TYPE_CHECKING:
    from fiber._base.threads import Timer
    from fiber._launch.child import Child
    from fiber._ring.member import MemberThread
    from fiber.model import JobStatus

log = logging.getLogger("fiber")


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
