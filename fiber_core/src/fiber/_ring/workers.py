"""The workers of a ring as its coordinator holds them: jobs, pipes, and what came over these.

Submits and ends the jobs of a ring, many at once.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from fiber._ring.events import Instruction, StartWorker
from fiber._ring.member import MemberProcess, Work
from fiber._ring.model import Failure, Group
from fiber._ring.protocol import Hello, Kept, Leave, Raised
from fiber.connection import Connection, Pipe
from fiber.exceptions import FiberError
from fiber.model import Gang, JobState

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._ring.member import MemberThread
    from fiber._runtime.runtime import Runtime
    from fiber.connection import Connection
    from fiber.model import JobStatus

__all__ = ["Worker", "ended_badly", "raised", "why"]

log = logging.getLogger("fiber")

#: jobs that are submitted, or ended, at once
_AT_ONCE = 16


class Owner(Protocol):
    """Who is told what became of a job; on any thread."""

    def launched(
        self, number: int, child: Child, process: MemberProcess, ends: list[Connection]
    ) -> None:
        """It was accepted."""

    def not_launched(self, number: int, error: BaseException) -> None:
        """It was not."""

    def job_changed(self, number: int, child: Child, status: JobStatus) -> None:
        """Something became of it."""


class Hands:
    """Threads that wait for the platform, so that nobody else has to.

    Args:
        runtime: of the process that starts the ring.
        work: what its members do.
        owner: who is told.
        together: seconds until all workers that are started at once are to be there; None where
            each is of use by itself.
    """

    def __init__(
        self, runtime: Runtime, work: Work, owner: Owner, together: float | None = None
    ) -> None:
        self._together = together
        self._runtime = runtime
        self._work = work
        self._owner = owner
        self._is_closed = False
        # of workers that are started together
        self._gangs: dict[int, Gang] = {}
        # its threads are made when there is something to do
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fiber-ring-hand")

    def gather(self, told: Sequence[Instruction]) -> None:
        """Note which workers are about to be started together: all that one step starts."""
        if self._together is None:
            return
        numbers = [
            one.worker for one in told if isinstance(one, StartWorker) and not one.group.is_caller
        ]
        if numbers:
            name = f"{self._work.name}-{numbers[0]}"
            gang = Gang(name=name, size=len(numbers), timeout=self._together)
            self._gangs.update(dict.fromkeys(numbers, gang))

    def launch(self, told: StartWorker) -> None:
        """Submit a worker's job, now.

        Raises:
            Exception: what pickling its work raised; what the platform says goes to the owner.
        """
        group, number = told.group, told.worker
        pairs = [Pipe() for _ in range(group.slots)]
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        process = MemberProcess(self._work, list(theirs))
        process.name = f"{self._work.name}.{told.seat}"
        try:
            child = self._runtime.launcher.launch(
                process,
                resources=group.resources,
                image=group.image,
                processes=group.slots,
                gang=self._gangs.pop(number, None),
                on_status=lambda child, status: self._owner.job_changed(number, child, status),
            )
        except BaseException as error:
            for end in ours:
                end.close()
            if not isinstance(error, FiberError):
                raise
            self._owner.not_launched(number, error)
            return
        finally:
            for end in theirs:
                end.close()
        process.started_as(child)
        self._owner.launched(number, child, process, ours)

    def launch_soon(self, told: StartWorker) -> None:
        """Submit a worker's job on another thread."""
        self._threads.submit(self._launch_or_tell, told)

    def _launch_or_tell(self, told: StartWorker) -> None:
        try:
            self.launch(told)
        except Exception as error:
            self._owner.not_launched(told.worker, error)

    def do(self, action: Callable[[], None]) -> None:
        """Ask the platform for something on another thread; that it cannot is logged."""
        if self._is_closed:
            _try(action)
        else:
            self._threads.submit(_try, action)

    def close(self) -> None:
        """Wait until all is done; what is asked afterwards is done at once, by whoever asks."""
        self._is_closed = True
        self._threads.shutdown(wait=True)


def _try(action: Callable[[], None]) -> None:
    try:
        action()
    except FiberError as error:
        log.warning("fiber: a member could not be ended, and will be again: %s", error)


class Worker:
    """One job of a ring, or its caller's own thread.

    Args:
        number: what the machine calls it.
        group: what it needs.
    """

    def __init__(self, number: int, group: Group) -> None:
        self.number = number
        self.group = group
        #: the coordinator's end of the pipe to each of its ranks
        self.ends: list[Connection] = []
        #: its job, once that was accepted
        self.child: Child | None = None
        self.process: Any = None
        self.thread: MemberThread | None = None
        #: True where it is to end as soon as there is something to be ended
        self.is_cancelled = False
        #: what its ranks said, by slot
        self.hellos: dict[int, Hello] = {}
        self.returned: dict[int, bytes] = {}
        self.kept: dict[int, Kept] = {}
        self.raised: set[int] = set()
        #: ranks whose pipe has ended
        self.silent: set[int] = set()

    @property
    def is_idle(self) -> bool:
        """True where none of its ranks runs user code any more, so that it leaves when told."""
        return len(self.returned.keys() | self.raised) == self.group.slots

    @property
    def is_up(self) -> bool:
        """True once all its ranks said hello."""
        return len(self.hellos) == self.group.slots

    def send(self, message: Any) -> None:
        """Tell all its ranks; those that are gone are told of otherwise."""
        for slot in range(len(self.ends)):
            self.send_to(slot, message)

    def send_to(self, slot: int, message: Any) -> None:
        """Tell one of them."""
        with contextlib.suppress(OSError, EOFError):
            self.ends[slot].send(message)

    def leave(self) -> None:
        """Let those go that have nothing to do."""
        self.send(Leave())

    def end(self, do: Callable[[Callable[[], None]], None], *, force: bool) -> bool:
        """Have it end; False where it cannot be, and is left alone.

        Args:
            do: does what may take a while.
            force: True where asking did not help.
        """
        if self.thread is not None:
            self.leave()
            if not self.is_idle:
                # a thread cannot be ended: it stays with what it waits for
                self.thread.restore()
                return False
        elif self.child is None:
            self.is_cancelled = True
        elif force:
            self.kill(do)
        else:
            self.leave()
            if not self.is_idle:
                do(self.child.terminate)
        return True

    def kill(self, do: Callable[[Callable[[], None]], None]) -> None:
        """End it at once."""
        if self.child is None:
            self.leave()
        elif self.child.poll() is None:
            do(self.child.kill)

    def close(self) -> None:
        """Let go of its pipes, and have it forgotten among the program's children."""
        for end in self.ends:
            end.close()
        if self.process is not None:
            # asked, it takes itself out of the active children
            self.process.is_alive()


def ended_badly(worker: Worker, status: JobStatus) -> tuple[int | None, Failure] | None:
    """The first rank that ended without having returned, with the reason; its slot where known."""
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


def raised(message: Raised, rank: int | None, host: str) -> Failure:
    """That a member's user code raised."""
    try:
        error = pickle.loads(message.error)
    except Exception as failure:
        # a class that this process does not have; the words say the rest
        error = failure
    return Failure(
        reason="raised",
        message=message.message,
        rank=rank,
        host=host,
        traceback=message.traceback,
        error=error,
    )


def why(error: BaseException) -> Failure:
    """Why a worker could not be started."""
    return Failure(reason=type(error).__name__, message=str(error), error=error)
