"""Watch of the engine's events about the containers of one run."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Mapping
from typing import Any

from fiber.backend_parts.feed import Feed, failed, with_log_tail
from fiber.exceptions import BackendError, FiberError
from fiber.model import JobState, JobStatus, ReasonKind
from fiber_docker.client import Client, close_stream
from fiber_docker.config import DockerTiming
from fiber_docker.jobs import JobStarter
from fiber_docker.status import (
    ContainerExit,
    Inspector,
    created_at,
    is_ambiguous,
    job_of,
    killed_unseen,
)

log = logging.getLogger("fiber")

_RUNNING = {"start": JobState.RUNNING, "unpause": JobState.RUNNING, "pause": JobState.SUSPENDED}
#: Docker's action and Podman's
_DIED = frozenset({"die", "died"})
_REMOVED = frozenset({"destroy", "remove"})
#: status of a job whose container is gone, unless the event of its end comes
REMOVED_UNSEEN = failed(
    ReasonKind.UNKNOWN, "its container was removed before its end was seen", -signal.SIGKILL
)
#: status of a job whose container vanished while the engine was away
_LOST_UNSEEN = failed(
    ReasonKind.NODE_LOST,
    "its container was removed while the Docker engine was away",
    -signal.SIGKILL,
)


class Watch:
    """Stream of the engine's events, in the thread ``fiber-docker-events``; opened again when it breaks.

    Each job and its status is published to the feed.
    """

    def __init__(
        self,
        client: Client,
        backend: str,
        run_id: str,
        feed: Feed,
        inspector: Inspector,
        starter: JobStarter,
        timing: DockerTiming,
    ) -> None:
        self._client = client
        self._backend = backend
        self._run_id = run_id
        self._label = f"fiber.run={run_id}"
        self._feed = feed
        self._inspector = inspector
        self._starter = starter
        self._timing = timing
        #: containers in which something was killed for want of memory
        self._oom: set[str] = set()
        self._closed = threading.Event()
        self._ready = threading.Event()
        self._failure: FiberError | None = None
        self._lock = threading.Lock()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="fiber-docker-events", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Wait until the stream is open and the present containers are published.

        Raises:
            BackendUnavailableError: the engine did not answer.
        """
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_alive(self) -> bool:
        """False where the first attempt to reach the engine failed."""
        return self._failure is None

    def close(self) -> None:
        """End the stream and its thread. Idempotent."""
        with self._lock:
            self._closed.set()
            stream = self._stream
        if stream is not None:
            with contextlib.suppress(Exception):
                # exceptions differ with the transport, and it is closed in any case
                stream.close()
        if self._thread is not threading.current_thread():
            self._thread.join(self._timing.watch_end)
        if self._thread.is_alive() and stream is not None:
            # over ssh a stream that is read cannot be cancelled, only taken away
            close_stream(stream)

    def _run(self) -> None:
        warned = False
        while not self._closed.is_set():
            try:
                self._follow()
                warned = False
            except FiberError as error:
                if not self._ready.is_set():
                    self._failure = error
                    self._ready.set()
                    return
                if not (warned or self._closed.is_set()):
                    log.warning("fiber: jobs are out of sight until the engine is back: %s", error)
                    warned = True
            except Exception:
                if self._closed.is_set():
                    break
                # an event that cannot be read must not hide those after it
                log.exception("fiber: an event of the Docker engine could not be read")
                self._ready.set()
            # there is no event for an engine that is back
            self._closed.wait(self._timing.retry)
        self._ready.set()

    def _follow(self) -> None:
        # since a time before the list is read, by the engine's clock: nothing is missed in between
        now = self._client.call("report its time", lambda api: api.info())["SystemTime"]
        # whole seconds: an event that comes twice changes nothing
        stream = self._client.events([self._label], int(created_at(now) or 0))
        with self._lock:
            if self._closed.is_set():
                stream.close()
                return
            self._stream = stream
        is_again = self._ready.is_set()
        gone = {job.id: job for job in self._feed.running(self._run_id)}
        for item in self._client.containers(self._label):
            labels = item.get("Labels") or {}
            if not item.get("Names"):
                # it is being removed, and its name is free already
                continue
            job = job_of(self._backend, item["Names"][0].lstrip("/"), labels)
            gone.pop(job.id, None)
            with contextlib.suppress(BackendError):
                # removed meanwhile: an event follows
                status = self._inspector.status(item["Id"], labels)
                self._feed.publish(job, killed_unseen(status) if is_again else status)
        for job in gone.values():
            # it ended and its container was removed while there was no stream
            self._feed.publish(job, with_log_tail(_LOST_UNSEEN, self._starter.log_tail(job.id)))
        self._ready.set()
        try:
            with self._client.translate_errors("stream events"):
                for event in stream:
                    self._handle_event(event)
        finally:
            close_stream(stream)

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        actor = event.get("Actor", {})
        attributes = actor.get("Attributes", {})
        action, container = str(event.get("Action", "")), str(actor.get("ID", ""))
        job = job_of(self._backend, attributes.get("name", container), attributes)
        if action == "create":
            self._feed.publish(job, JobStatus(state=JobState.PENDING))
        elif action in _RUNNING:
            self._feed.publish(job, JobStatus(state=_RUNNING[action]))
        elif action in _DIED:
            code = int(attributes.get("exitCode") or attributes.get("containerExitCode") or 0)
            status = self._ended(container, code, attributes)
            self._feed.publish(job, with_log_tail(status, self._starter.log_tail(job.id)))
        elif action == "oom":
            self._oom.add(container)
        elif action in _REMOVED and not self._starter.reports_end(job.id):
            self._feed.publish(job, REMOVED_UNSEEN)

    def _ended(self, container: str, code: int, labels: Mapping[str, str]) -> JobStatus:
        oom = container in self._oom
        self._oom.discard(container)
        # a process of Fiber's reports its end itself, and its container is gone by now
        if is_ambiguous(code) and labels.get("fiber.kind") != "process":
            with contextlib.suppress(BackendError):
                # if it is removed already, only the code is known
                status = self._inspector.status(container, labels)
                if status.state.is_terminal:
                    return status
        return ContainerExit(code=code, oom=oom).status()
