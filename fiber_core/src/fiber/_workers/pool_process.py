"""The process of one worker of a pool, and the large payloads that it shares with its owner.

Apart from ``group``, so that a worker process does not import the owner's side.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fiber._agent.instructions import DESCRIPTORS_LOST, dial
from fiber._base.log import lazy_logger
from fiber._runtime import runtime
from fiber._wire.frames import Buffer
from fiber._wire.link import Link
from fiber.exceptions import FiberError
from fiber.process import Process

if TYPE_CHECKING:
    from pathlib import Path

    from fiber._objects.memory.backing import Sealed
    from fiber._runtime.runtime import Runtime
    from fiber._tasks.shared_payload import SharedPayload
    from fiber._tasks.worker import Worker

log = lazy_logger()


class PoolWorker(Process):
    """Runs the initializer, then the tasks that its pool sends; a daemon that may have children.

    Args:
        target: number of its pool in messages.
        initializer: called first, or None.
        initargs: its arguments.
        task_errors: exceptions of a task that are its outcome; any other ends the worker.
        is_crowd: True where the pool may have far more workers than this host has CPUs.
    """

    def __init__(
        self,
        target: int,
        initializer: Callable[..., Any] | None,
        initargs: tuple[Any, ...],
        *,
        task_errors: type[BaseException] = Exception,
        is_crowd: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        settings: dict[str, Any] = vars(self)["_config"]
        settings["fiber_may_have_children"] = True
        self._pool_target = target
        self._initializer = initializer
        self._initargs = initargs
        self._task_errors = task_errors
        self._is_crowd = is_crowd
        self._worker: Worker | None = None

    def describe_task(self) -> str:
        """The task that runs, for people; "" for none."""
        return "" if self._worker is None else self._worker.describe_task()

    def run(self) -> None:
        """Work until the pool ends."""
        # here, since the pool's own process makes these objects and runs none
        from fiber._tasks.worker import DescriptorsLostError, Worker

        current = runtime.current()
        link, instructions = current.parent_link, current.instructions
        if link is None or instructions is None:
            msg = "a pool's worker runs in a process that the pool started"
            raise FiberError(msg)
        link.on_descriptors_lost(self._leave)
        if self._is_crowd and link.peer.host == current.hello.host:
            _wait_for_turn()

        def redial() -> Link:
            made = dial(instructions, current.hello)
            made.on_descriptors_lost(self._leave)
            return made

        store = SealedPayloadStore(current)
        worker = Worker(
            link,
            self._pool_target,
            redial,
            store,
            errors=self._task_errors,
            timing=current.timing,
        )
        self._worker = worker
        if self._initializer is not None:
            try:
                self._initializer(*self._initargs)
            except Exception as error:
                worker.report_broken(error)
                raise
        try:
            worker.run()
        except DescriptorsLostError:
            self._leave()

    def _leave(self) -> NoReturn:
        """End this process at once, on any thread: a task has closed its connections."""
        # nothing that would be closed in order can be: other files may have those numbers by now
        log.error(
            "fiber: %s ends: a task has closed or replaced descriptors that it did not open",
            self.name,
        )
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(DESCRIPTORS_LOST)


def _wait_for_turn() -> None:
    """Have this thread, once woken, wait until the one that has the CPU gives it up.

    Else each of a thousand workers that is sent a task takes the CPU of the owner that sends them, which then
    waits until all that it has woken had their turn. Threads and processes that a task starts inherit this.
    """
    if sys.platform == "linux":
        # a container may forbid it; musl has no such call
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class SealedPayloadStore:
    """Payloads in sealed shared memory, written by this process or by another one of its host."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def write(self, segments: Sequence[Buffer]) -> SharedPayload | None:
        """Write bytes into shared memory; None where there is no room for them."""
        # a process that has nothing large does not import it
        from fiber._objects.memory import backing

        try:
            return _SealedPayload(backing.seal(segments, self._folder, self._runtime.ident))
        except OSError as error:
            log.debug("fiber: a function is sent to each worker: %s", error)
            return None

    def find(self, locator: bytes) -> SharedPayload | None:
        """Map a payload; None where this process cannot."""
        from fiber._objects.memory import backing

        found = backing.find_sealed(backing.Location.unpack(locator), self._folder)
        return None if found is None else _SealedPayload(found)

    def _folder(self) -> Path:
        return self._runtime.directory


class _SealedPayload:
    def __init__(self, sealed: Sealed) -> None:
        self._sealed = sealed
        self.locator = sealed.location.packed()
        self.size = sealed.size
        self.view = sealed.view
        self.private = sealed.private
        self.close = sealed.close
