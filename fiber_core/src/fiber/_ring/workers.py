"""The workers of a ring as its coordinator holds them: jobs, pipes, and what came over these."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._ring.model import Failure, Group
from fiber._ring.protocol import Hello, Kept, Leave, Raised
from fiber.model import JobState

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._ring.member import MemberThread
    from fiber.model import JobStatus
    from fiber.pipes import Connection

__all__ = ["Worker", "ended_badly", "raised", "why"]


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
