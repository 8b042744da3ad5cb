"""Status of a run: made of what its parts know, when somebody asks; and asked for at other programs.

:func:`collect` tells of this process; :func:`ask` reads what another program of this user on this host
tells of itself.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._base.interpreter import resident
from fiber._objects.address import Kind
from fiber._objects.queue.channel import Channel
from fiber._objects.store import Store
from fiber._runtime.status_socket import NAME
from fiber._tasks.dispatcher import HeldTasks
from fiber._workers.group import WorkerGroup
from fiber.exceptions import FiberError
from fiber.model import JobState
from fiber.watching import (
    FailedTask,
    PoolStatus,
    ProcessState,
    QueueStatus,
    RunStatus,
    WorkerStatus,
)

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._runtime.runtime import Runtime
    from fiber._workers.state import WorkerRecord


#: a task is slow once it has run for so many times the median
_SLOW_FACTOR = 5.0


def collect(runtime: Runtime) -> RunStatus:
    """Return the status of a run as this process of it sees it."""
    groups = [part for part in runtime.parts if isinstance(part, WorkerGroup)]
    pools = tuple(of_group(group) for group in groups if group.began)
    workers = {record.child.ident for group in groups for record in group.records()}
    return RunStatus(
        run=runtime.run_id,
        backend=runtime.info.name,
        pid=os.getpid(),
        program=tuple(sys.argv),
        pools=pools,
        processes=tuple(
            _of_child(child) for child in runtime.children() if child.ident not in workers
        ),
        queues=tuple(
            QueueStatus(number=shared.target, length=shared.size(0))
            for part in runtime.parts
            if isinstance(part, Store)
            for shared in part.owned()
            if isinstance(shared, Channel) and shared.kind is Kind.QUEUE
        ),
        host=os.uname().nodename,
        memory=resident(),
    )


def as_data(runtime: Runtime) -> dict[str, Any]:
    """Return :func:`collect` as what JSON can hold."""
    data: dict[str, Any] = _plain(collect(runtime))
    return data


def of_group(group: WorkerGroup) -> PoolStatus:
    """Return the status of one group of workers."""
    tasks, outlook = group.dispatcher.look(), group.manager.outlook()
    # numbers of processes elsewhere, or in containers, mean others here: these tell themselves
    reported = None if group.is_here else group.dispatcher.ask_memory(group.timing.memory_look)
    workers = tuple(
        _of_worker(one, tasks.held.get(one.ident, HeldTasks()), group.timing.slow_task, reported)
        for one in group.records()
    )
    names = {one.ident: one.name for one in group.records()} if tasks.errors else {}
    return PoolStatus(
        name=group.name,
        wanted=outlook.desired,
        ready=outlook.ready,
        reason=outlook.reason,
        waiting=tasks.waiting,
        running=tasks.running,
        done=tasks.done,
        failed=tasks.failed,
        retried=tasks.retried,
        workers=workers,
        errors=tuple(
            FailedTask(**{**values.asdict(one), "worker": names.get(one.worker, "")})
            for one in tasks.errors
        ),
    )


def _of_worker(
    record: WorkerRecord,
    held: HeldTasks,
    slow: float,
    reported: Mapping[str, int | None] | None = None,
) -> WorkerStatus:
    child, status = record.child, record.child.status
    process = child.process_status(record.index)
    if record.suspended_at is not None:
        state = "suspended"
    elif record.stopped_at is not None:
        state = "stopped"
    elif record.leaving or record.killed_at is not None:
        state = "leaving"
    elif not record.ready:
        state = "waiting" if status is not None and _is_pending(child) else "starting"
    else:
        state = "busy" if held.items else "idle"
    pid = None if process is None else process.pid
    here = None if pid is None or reported is not None else resident(pid)
    said = status.message if status is not None and state in {"suspended", "waiting"} else ""
    return WorkerStatus(
        name=record.name,
        host=child.host,
        pid=pid,
        state=state,
        reason=said,
        running=held.items,
        function=held.function,
        seconds=round(held.seconds, 3),
        usual=held.usual,
        is_slow=_is_slow(held, slow),
        done=held.done,
        lately=_rounded(held.lately.seconds),
        others=_rounded(held.lately.others),
        job=_job_of(child),
        memory=here if reported is None else reported.get(record.ident),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds:.3g}")


def _is_slow(held: HeldTasks, least: float) -> bool:
    if held.usual is None:
        return False
    return held.seconds >= max(least, _SLOW_FACTOR * held.usual)


def _of_child(child: Child) -> ProcessState:
    status = child.status
    return ProcessState(
        name=child.name,
        host=child.host,
        pid=child.known_pid,
        state="starting" if status is None else status.state.value,
        reason="" if status is None else status.message,
        job=_job_of(child),
    )


def _job_of(child: Child) -> str:
    return "" if child.job is None else child.job.id


def _is_pending(child: Child) -> bool:
    return child.status is not None and child.status.state is JobState.PENDING


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(
        value, (RunStatus, PoolStatus, WorkerStatus, ProcessState, QueueStatus, FailedTask)
    ):
        return {name: _plain(one) for name, one in values.asdict(value).items()}
    return value


class Asker:
    """Connection to the program of a run, to ask how it goes again and again; a context manager.

    Args:
        folder: the run's.
        timeout: seconds to wait for an answer.

    Raises:
        FiberError: nobody answers there.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self._run = folder.name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(str(folder / NAME))
        except OSError as error:
            self._socket.close()
            raise self._failure(error) from error
        self._answers = self._socket.makefile("rb")

    def status(self) -> dict[str, Any]:
        """Return the status as :class:`~fiber.watching.RunStatus` has it, of JSON's types.

        Raises:
            FiberError: the program does not answer any more.
        """
        return self.ask("status")

    def ask(self, what: str, **facts: object) -> dict[str, Any]:
        """Return what :class:`~fiber._watch.answers.Answers` answers.

        Args:
            what: ``status``, ``timeline`` or ``log``.
            facts: which.

        Raises:
            FiberError: the program does not answer any more, or cannot tell that.
        """
        try:
            self._socket.sendall(json.dumps({"ask": what, **facts}).encode() + b"\n")
            answer = json.loads(self._answers.readline())
        except (OSError, ValueError) as error:
            raise self._failure(error) from error
        if not isinstance(answer, dict) or "error" in answer:
            said = answer.get("error") if isinstance(answer, dict) else answer
            msg = f"the program of run {self._run} answers: {said}"
            raise FiberError(msg)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failure(self, cause: object) -> FiberError:
        return FiberError(f"the program of run {self._run} does not answer: {cause}")
