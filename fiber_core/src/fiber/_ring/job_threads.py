"""Submits and ends the jobs of a ring, many at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from fiber._ring.commands import Instruction, StartWorker
from fiber._ring.member import MemberProcess, Work
from fiber.exceptions import FiberError
from fiber.model import Gang
from fiber.pipes import Connection, Pipe

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._runtime.runtime import Runtime
    from fiber.model import JobStatus

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
