"""The stations of a run as the coordinator sees them: processes, pipes, and one queue of events."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import wait
from typing import Any, TypeAlias, cast

from fiber import values
from fiber.exceptions import FiberError, StartError
from fiber.model import ResourceRequest, Volume
from fiber.mpi import messages
from fiber.mpi.station import serve
from fiber.pipes import Pipe
from fiber.process import Process

__all__ = ["Crew", "Event", "Lost", "Need"]

#: seconds that stations have to end by themselves
_PATIENCE = 5.0


@values.frozen(kw_only=True)
class Need:
    """What a station's job asks of the platform; None and empty mean what the settings say."""

    resources: ResourceRequest = values.field(factory=ResourceRequest)
    image: str | None = None
    volumes: tuple[Volume, ...] = ()


@values.frozen
class Lost:
    """A station has ended, or was given up."""

    why: str


#: a station's name and what came from it, or the number of a signal for us
Event: TypeAlias = tuple[str, "messages.FromStation | Lost"] | int


class _StationProcess(Process):
    """A process whose job has needs of its own."""

    need = Need()

    def _launch(self) -> Any:
        from fiber import runtime

        current = runtime.current()
        asked, config = self.need.resources, current.config
        resources = ResourceRequest(
            cpu=config.cpu if asked.cpu is None else asked.cpu,
            memory=config.memory if asked.memory is None else asked.memory,
            devices=asked.devices,
        )
        need = self.need
        # the child needs none of it
        del self.need
        return current.launcher.launch(
            self, resources=resources, image=need.image, volumes=need.volumes
        )


class Crew:
    """Starts stations, tells them what to do, and collects what they say.

    Args:
        token: what stations show each other.
    """

    def __init__(self, token: str) -> None:
        self._token = token
        self._processes: dict[str, _StationProcess] = {}
        self._pipes: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []
        # put() may be called by a signal handler, in the middle of get()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._woken, self._wake = os.pipe()

    def start(self, needs: Mapping[str, Need]) -> None:
        """Start a station for each name; each says Up, or is Lost.

        Raises:
            SubmitError: the platform refuses one.
        """
        for name, need in needs.items():
            ours, theirs = Pipe()
            process = _StationProcess(
                target=serve, args=(theirs, name, self._token), name=name, daemon=True
            )
            process.need = need
            self._pipes[name] = ours
            self._processes[name] = process
            process.start()
            theirs.close()
            self._spawn(self._read, name, ours)
        self._spawn(self._watch)

    def tell(self, name: str, message: messages.ToStation) -> None:
        """Tell a station something; one that is gone hears nothing."""
        with contextlib.suppress(OSError):
            self._pipes[name].send(message)

    def put(self, event: Event) -> None:
        """Add an event, from any thread or a signal handler."""
        self._events.put(event)

    def get(self, until: float | None) -> Event | None:
        """The next event, or None after a time on the monotonic clock."""
        try:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def waits_for(self, name: str) -> str:
        """Why a station is not up yet, in the platform's words where it has any."""
        child = self._processes[name]._popen  # noqa: SLF001 - ours
        status = None if child is None else child.status
        if status is None:
            return "nothing is known of it"
        return status.message or f"it is {status.state.value}"

    def end(self) -> None:
        """End all stations, and wait for them."""
        started = {name: p for name, p in self._processes.items() if p._popen is not None}  # noqa: SLF001 - ours
        for name in started:
            self.tell(name, messages.Close())
        deadline = time.monotonic() + _PATIENCE
        for process in started.values():
            if not _has_ended(process, deadline - time.monotonic()):
                process.kill()
        for process in started.values():
            _has_ended(process, _PATIENCE)
        os.write(self._wake, b"x")
        for pipe in self._pipes.values():
            pipe.close()
        for thread in self._threads:
            thread.join()
        os.close(self._woken)
        os.close(self._wake)

    def _spawn(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="fiber-crew", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(self, name: str, pipe: Any) -> None:
        while True:
            try:
                self._events.put((name, pipe.recv()))
            except (EOFError, OSError):
                # why, the end of its process tells
                return

    def _watch(self) -> None:
        alive = {process.sentinel: name for name, process in self._processes.items()}
        while alive:
            ready = wait([self._woken, *alive])
            if self._woken in ready:
                return
            for sentinel in ready:
                name = alive.pop(cast(int, sentinel))
                self._events.put((name, Lost(_how(self._processes[name]))))


def _has_ended(process: Process, timeout: float) -> bool:
    try:
        process.join(max(0.0, timeout))
    except StartError:
        # it never was there
        return True
    return process.exitcode is not None


def _how(process: Process) -> str:
    child = process._popen  # noqa: SLF001 - ours
    status = None if child is None else child.status
    try:
        code = process.exitcode
    except FiberError as error:
        return str(error)
    if status is not None and status.message:
        return status.message
    return f"its process ended with exit code {code}"
