"""Watch of the engine's events about the containers of one run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from typing import Any

from fiber._base import values
from fiber.backend_parts.containers import timestamp
from fiber.backend_parts.feed import Feed, failed, with_log_tail
from fiber.backend_parts.watch import RunWatch
from fiber.exceptions import BackendError
from fiber.model import JobState, JobStatus, ReasonKind
from fiber_docker.client import Client, close_stream
from fiber_docker.config import DockerTiming
from fiber_docker.jobs import JobStarter
from fiber_docker.status import (
    Inspector,
    exit_status,
    is_ambiguous,
    job_of,
    killed_unseen,
)

_RUNNING = {"start": JobState.RUNNING, "unpause": JobState.RUNNING, "pause": JobState.SUSPENDED}
#: Docker's action and Podman's
_DIED = frozenset({"die", "died"})
_REMOVED = frozenset({"destroy", "remove"})
#: a kernel's words for a program of another one, or of a kind of CPU that it does not run on
_OTHER_CPU = "exec format error"
_OTHER_CPU_ADVICE = (
    "its image may be for another kind of CPU than the engine's; build or pull it with --platform"
)
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


class Watch(RunWatch):
    """Stream of the engine's events, in the thread ``fiber-docker-events``; each status is published to the feed."""

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
        super().__init__("fiber-docker-events", "the engine", timing.watch_end)
        self._client = client
        self._backend = backend
        self._run_id = run_id
        self._label = f"fiber.run={run_id}"
        self._feed = feed
        self._inspector = inspector
        self._starter = starter
        self._retry = timing.retry
        #: containers in which something was killed for want of memory
        self._oom: set[str] = set()
        self._stream: Any = None

    def cut(self) -> None:
        """End the stream."""
        # exceptions differ with the transport, and it is closed in any case
        with contextlib.suppress(Exception):
            self._stream.close()

    def pause(self, error: Exception | None) -> float:
        """Return the same time after each attempt."""
        return self._retry

    def close(self) -> None:
        """End the stream and its thread. Idempotent."""
        super().close()
        if self._thread.is_alive():
            # over ssh a stream that is read cannot be cancelled, only taken away
            close_stream(self._stream)

    def follow(self) -> None:
        """Open the stream, then list and inspect the containers."""
        # since a time before the list is read, by the engine's clock: nothing is missed in between
        now = self._client.call("report its time", lambda api: api.info())["SystemTime"]
        # whole seconds: an event that comes twice changes nothing
        stream = self._stream = self._client.events([self._label], int(timestamp(now) or 0))
        try:
            if self.is_closed:
                return
            self._publish_present()
            self.set_ready()
            with self._client.translate_errors("stream events"):
                for event in stream:
                    self._handle_event(event)
        finally:
            close_stream(stream)

    def _publish_present(self) -> None:
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
                self._feed.publish(job, killed_unseen(status) if self.is_ready else status)
        for job in gone.values():
            # it ended and its container was removed while there was no stream
            self._feed.publish(job, with_log_tail(_LOST_UNSEEN, self._starter.log_tail(job.id)))

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
            tail = self._starter.log_tail(job.id)
            status = self._ended(container, code, attributes)
            if any(_OTHER_CPU in line for line in tail):
                status = values.evolve(status, message=f"{status.message}: {_OTHER_CPU_ADVICE}")
            self._feed.publish(job, with_log_tail(status, tail))
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
        return exit_status(code, oom=oom)
