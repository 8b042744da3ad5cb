"""Follows the engine's events about the containers of one run."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fiber.exceptions import BackendError, FiberError
from fiber.model import Job, JobState, JobStatus, Reason, ReasonKind
from fiber_docker.client import Client, close_stream
from fiber_docker.status import (
    End,
    created_at,
    job_of,
    killed_unseen,
    needs_a_look,
    with_words,
)

__all__ = ["REMOVED_UNSEEN", "Watch"]

log = logging.getLogger("fiber")

#: seconds between two tries to reach an engine that is gone
_RETRY = 0.5
#: seconds that a stream may take to end
_LAST = 5.0
_RUNNING = {"start": JobState.RUNNING, "unpause": JobState.RUNNING, "pause": JobState.SUSPENDED}
#: Docker's word and Podman's
_DIED = frozenset({"die", "died"})
_REMOVED = frozenset({"destroy", "remove"})
#: what is known of a job whose container is gone, until more is told
REMOVED_UNSEEN = JobStatus(
    state=JobState.FAILED,
    reason=Reason(ReasonKind.UNKNOWN),
    exit_code=-9,
    message="its container was removed before its end was seen",
)
#: the same where nobody looked because the engine was away
_LOST_UNSEEN = attrs.evolve(
    REMOVED_UNSEEN,
    reason=Reason(ReasonKind.NODE_LOST),
    message="its container was removed while the Docker engine was away",
)


class Watch:
    """One stream of events, in a thread of its own, made anew when it breaks.

    Args:
        client: the engine.
        backend: name of the backend.
        run_id: whose containers.
        publish: told of every job and its status.
        look: asks the engine for the status of a container that ended, by its id and labels.
        last_words: the last lines of a job, where they came here.
        running: the jobs of the run that were seen to run, and not to end.
        tells: whether somebody else tells of a job whose container was removed without an end.
    """

    def __init__(
        self,
        client: Client,
        backend: str,
        run_id: str,
        publish: Callable[[Job, JobStatus], None],
        look: Callable[[str, Mapping[str, str]], JobStatus],
        last_words: Callable[[str], tuple[str, ...]],
        running: Callable[[str], list[Job]],
        tells: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._backend = backend
        self._run_id = run_id
        self._label = f"fiber.run={run_id}"
        self._publish = publish
        self._look = look
        self._last_words = last_words
        self._running = running
        self._tells = tells
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
        """Return once nothing can be missed any more.

        Raises:
            BackendUnavailableError: the engine could not be asked.
        """
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_alive(self) -> bool:
        """False where the engine could not be asked in the first place."""
        return self._failure is None

    def close(self) -> None:
        """End the stream and its thread. Idempotent."""
        with self._lock:
            self._closed.set()
            stream = self._stream
        if stream is not None:
            with contextlib.suppress(Exception):
                # what it raises differs with the transport, and it is over in any case
                stream.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_LAST)
        if self._thread.is_alive() and stream is not None:
            # over ssh a stream that is read cannot be cancelled, only taken away
            close_stream(stream)

    def _run(self) -> None:
        complained = False
        while not self._closed.is_set():
            try:
                self._follow()
                complained = False
            except FiberError as error:
                if not self._ready.is_set():
                    self._failure = error
                    self._ready.set()
                    return
                if not (complained or self._closed.is_set()):
                    log.warning("fiber: jobs are out of sight until the engine is back: %s", error)
                    complained = True
            except Exception:
                if self._closed.is_set():
                    break
                # one event that makes no sense must not hide those after it
                log.exception("fiber: an event of the Docker engine could not be read")
                self._ready.set()
            # an engine that is gone tells nobody when it is back
            self._closed.wait(_RETRY)
        self._ready.set()

    def _follow(self) -> None:
        # by the engine's own clock, and from before the list is read: nothing falls in between
        now = self._client.call("tell its time", lambda api: api.info())["SystemTime"]
        # whole seconds: what is told again is no news
        stream = self._client.events([self._label], int(created_at(now) or 0))
        with self._lock:
            if self._closed.is_set():
                stream.close()
                return
            self._stream = stream
        is_again = self._ready.is_set()
        gone = {job.id: job for job in self._running(self._run_id)}
        for item in self._client.containers(self._label):
            labels = item.get("Labels") or {}
            if not item.get("Names"):
                # it is being removed, and its name is free already
                continue
            job = job_of(self._backend, item["Names"][0].lstrip("/"), labels)
            gone.pop(job.id, None)
            with contextlib.suppress(BackendError):
                # removed meanwhile: an event will say so
                status = self._look(item["Id"], labels)
                self._publish(job, killed_unseen(status) if is_again else status)
        for job in gone.values():
            # it ended, and its container was removed, while nobody looked
            self._publish(job, with_words(_LOST_UNSEEN, self._last_words(job.id)))
        self._ready.set()
        try:
            with self._client.asking("tell events"):
                for event in stream:
                    self._told(event)
        finally:
            close_stream(stream)

    def _told(self, event: Mapping[str, Any]) -> None:
        actor = event.get("Actor", {})
        attributes = actor.get("Attributes", {})
        action, container = str(event.get("Action", "")), str(actor.get("ID", ""))
        job = job_of(self._backend, attributes.get("name", container), attributes)
        if action == "create":
            self._publish(job, JobStatus(state=JobState.PENDING))
        elif action in _RUNNING:
            self._publish(job, JobStatus(state=_RUNNING[action]))
        elif action in _DIED:
            code = int(attributes.get("exitCode") or attributes.get("containerExitCode") or 0)
            status = self._ended(container, code, attributes)
            self._publish(job, with_words(status, self._last_words(job.id)))
        elif action == "oom":
            self._oom.add(container)
        elif action in _REMOVED and not self._tells(job.id):
            self._publish(job, REMOVED_UNSEEN)

    def _ended(self, container: str, code: int, labels: Mapping[str, str]) -> JobStatus:
        oom = container in self._oom
        self._oom.discard(container)
        # a process of Fiber's tells more by itself, and its container is gone by now
        if needs_a_look(code) and labels.get("fiber.kind") != "process":
            with contextlib.suppress(BackendError):
                # it may be removed already, and then the code is all there is
                status = self._look(container, labels)
                if status.state.is_terminal:
                    return status
        return End(code=code, oom=oom).status()
