"""Watch of a run's pods: a list, then a stream of changes, reopened whenever it ends.

See "Efficient detection of changes" in Kubernetes' API concepts: the stream resumes at the last
resource version; where that has expired (HTTP 410) the pods are listed again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import urllib3

from fiber.backend_parts.logfile import split_lines
from fiber.exceptions import BackendError, BackendUnavailableError, FiberError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.flow_control import RetryWindow, backoff
from fiber_k8s.names import PREFIX

log = logging.getLogger("fiber")

_PAGE = 500


class Expired(Exception):  # noqa: N818 - a word within this module, no error
    """The resource version has expired: a new list is needed."""


class Watch:
    """Watch of one run, with a thread of its own, on which the callbacks run.

    ``on_pod`` is called with each pod that exists, after each change; ``on_deleted`` with the last
    version of each that was deleted.
    """

    def __init__(
        self,
        client: Client,
        run_id: str,
        on_pod: Callable[[Mapping[str, Any]], None],
        on_deleted: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._client = client
        self._timing = client.timing
        self._selector = f"{PREFIX}run={run_id}"
        self._on_pod = on_pod
        self._on_deleted = on_deleted
        #: latest versions of the existing pods
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._version: str | None = None
        #: True once a stream has sent an event since the last backoff
        self._received = False
        self._closed = threading.Event()
        self._ready = threading.Event()
        self._failure: FiberError | None = None
        self._lock = threading.Lock()
        self._response: Any = None
        self._thread = threading.Thread(target=self._run, name="fiber-k8s-watch", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Wait for the first list, after which no change is missed.

        Raises:
            BackendUnavailableError: the cluster could not be reached for as long as it is retried.
            BackendError: it refused.
        """
        self._ready.wait()
        if self._failure is not None:
            # the exception is shared by all waiting threads: their tracebacks must not add up
            raise self._failure.with_traceback(None)

    @property
    def is_alive(self) -> bool:
        """False where the first list failed and the thread has ended."""
        return self._failure is None

    def cut(self) -> None:
        """Break the connection, as a network may; it is opened again."""
        with self._lock:
            response = self._response
        if response is not None:
            _break(response)

    def close(self) -> None:
        """End the stream and its thread. Idempotent."""
        self._closed.set()
        self.cut()
        if self._thread is not threading.current_thread():
            self._thread.join(self._timing.watch_end)

    # -- the thread

    def _run(self) -> None:
        try:
            # a missing configuration is not retried
            _ = self._client.connection
        except FiberError as error:
            self._fail(error)
            return
        timing = self._timing
        waits = backoff(timing.backoff, timing.watch_backoff)
        window = RetryWindow("list pods", self._client.core_timing)
        complained = is_old = False
        while not self._closed.is_set():
            began, rest = time.monotonic(), 0.0
            try:
                if self._version is None:
                    self._list()
                    self._ready.set()
                self._follow()
                complained = False
                # it ended as all do
            except Expired:
                self._version = None
                if not is_old:
                    # without backoff: ends that were missed wait for the list
                    is_old = True
                    continue
            except FiberError as error:
                if not self._ready.is_set():
                    if not (_may_pass(error) and window.allows(error)):
                        self._fail(error)
                        return
                elif not (complained or self._closed.is_set()):
                    log.warning("fiber: pods are out of sight until the cluster is back: %s", error)
                    complained = True
                if isinstance(error, ApiError):
                    rest = error.retry_after
            except Exception:
                if self._closed.is_set():
                    break
                # one invalid object must not hide those after it
                log.exception("fiber: what the cluster said of a pod could not be read")
                self._version = None
            if self._received or time.monotonic() - began > timing.watch_accepted:
                waits = backoff(timing.backoff, timing.watch_backoff)
                self._received = is_old = False
            # no event reports that a cluster is reachable again, and one that ends each stream at
            # once must not be called without a pause
            self._closed.wait(max(rest, next(waits)))
        self._ready.set()

    def _fail(self, error: FiberError) -> None:
        self._failure = error
        self._ready.set()

    def _list(self) -> None:
        found: dict[str, Mapping[str, Any]] = {}
        query: dict[str, Any] = {"labelSelector": self._selector, "limit": _PAGE}
        while True:
            try:
                # retried by the thread, at shorter intervals
                page = self._client.call(
                    "GET", self._client.path("pods"), "list pods", query=query, again=_never
                )
            except ApiError as error:
                if error.status != 410:
                    raise
                # the continue token has expired: list from the beginning
                query.pop("continue", None)
                found.clear()
                continue
            for pod in page.get("items") or ():
                found[pod["metadata"]["name"]] = pod
            more = page["metadata"].get("continue")
            if not more:
                break
            query["continue"] = more
        before, self._pods = self._pods, found
        self._version = page["metadata"]["resourceVersion"]
        for name, pod in before.items():
            if name not in found or _uid(found[name]) != _uid(pod):
                self._on_deleted(pod)
        for pod in found.values():
            self._on_pod(pod)

    def _follow(self) -> None:
        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": math.ceil(self._timing.watch),
        }
        try:
            response = self._client.open(
                "GET",
                self._client.path("pods"),
                "watch pods",
                query=query,
                timeout=self._timing.watch_silence,
            )
        except ApiError as error:
            if error.status == 410:
                raise Expired from error
            raise
        with self._lock:
            self._response = response
        if self._closed.is_set():
            _break(response)
        try:
            for line in split_lines(response.stream(1 << 16, decode_content=True)):
                if line:
                    self._handle_event(json.loads(line))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as failure:
            if self._closed.is_set():
                return
            # resumed at the last version; repeated events are harmless
            msg = f"the stream of pods broke: {failure}"
            raise BackendUnavailableError(msg) from failure
        finally:
            with self._lock:
                self._response = None
            with contextlib.suppress(Exception):
                # errors while closing differ with the transport, and it is over in any case
                response.close()

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        kind, thing = event["type"], event["object"]
        if kind == "ERROR":
            if thing.get("code") == 410:
                raise Expired
            msg = f"the cluster ended the stream of pods: {thing.get('message')}"
            raise BackendUnavailableError(msg)
        self._version = thing["metadata"]["resourceVersion"]
        self._received = True
        if kind == "BOOKMARK":
            return
        name = thing["metadata"]["name"]
        if kind == "DELETED":
            self._pods.pop(name, None)
            self._on_deleted(thing)
        else:
            self._pods[name] = thing
            self._on_pod(thing)


def _break(response: Any) -> None:
    """Shut down a response's socket: closing it from another thread would wait for its reader."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        connection = getattr(response, "connection", None) or response._connection  # noqa: SLF001
        connection.sock.shutdown(socket.SHUT_RDWR)


def _never(_: BackendError) -> bool:
    return False


def _may_pass(error: FiberError) -> bool:
    """Return whether the first list may be retried."""
    if isinstance(error, ApiError):
        return error.is_transient or error.status == 429
    return isinstance(error, BackendUnavailableError)


def _uid(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("uid"))
