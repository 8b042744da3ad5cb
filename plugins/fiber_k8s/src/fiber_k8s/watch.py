"""Watch of a run's pods: a list, then a stream of changes, reopened whenever it ends.

See "Efficient detection of changes" in Kubernetes' API concepts: the stream resumes at the last
resource version; where that has expired (HTTP 410) the pods are listed again.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import urllib3

from fiber.backend_parts.logfile import split_lines
from fiber.backend_parts.watch import RunWatch
from fiber.exceptions import BackendError, BackendUnavailableError, FiberError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.flow_control import RetryWindow, backoff
from fiber_k8s.names import PREFIX

_PAGE = 500


class Expired(Exception):  # noqa: N818 - a word within this module, no error
    """The resource version has expired: a new list is needed."""


class Watch(RunWatch):
    """Watch of one run, in the thread ``fiber-k8s-watch``, on which the callbacks run.

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
        super().__init__("fiber-k8s-watch", "the cluster", client.timing.watch_end)
        self._client = client
        self._timing = client.timing
        self._selector = f"{PREFIX}run={run_id}"
        self._on_pod = on_pod
        self._on_deleted = on_deleted
        #: latest versions of the existing pods
        self._pods: dict[str, Mapping[str, Any]] = {}
        #: from which the stream is opened; None to list the pods before
        self._version: str | None = None
        #: True once a stream has sent an event since the last backoff
        self._received = False
        #: True where the pods were listed again since then
        self._was_listed = False
        self._began = 0.0
        self._window = RetryWindow("list pods", client.core_timing)
        self._waits = self._backoff()
        self._response: Any = None

    def cut(self) -> None:
        """Break the connection, as a network may."""
        response = self._response
        if response is not None:
            _break(response)

    def may_pass(self, error: FiberError) -> bool:
        """Return whether the first attempt may be retried; a missing configuration or right is not."""
        if isinstance(error, ApiError):
            passes = error.is_transient or error.status == 429
        else:
            passes = isinstance(error, BackendUnavailableError) and self._client.is_configured
        return passes and self._window.allows(error)

    def pause(self, error: Exception | None) -> float:
        """Return the backoff: a cluster that ends each stream at once is not called without a pause."""
        if self._received or time.monotonic() - self._began > self._timing.watch_accepted:
            self._waits = self._backoff()
            self._received = self._was_listed = False
        if error is not None and not isinstance(error, FiberError):
            # what could not be read is listed
            self._version = None
        rest = error.retry_after if isinstance(error, ApiError) else 0.0
        return max(rest, next(self._waits))

    def follow(self) -> None:
        """List the pods where no version is known, then follow the stream."""
        self._began = time.monotonic()
        while True:
            if self._version is None:
                self._list()
            try:
                self._follow()
            except Expired:
                self._version = None
                if self._was_listed:
                    return
                # at once: ends that were missed wait for the list
                self._was_listed = True
            else:
                return

    def _backoff(self) -> Iterator[float]:
        return backoff(self._timing.backoff, self._timing.watch_backoff)

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
        self._response = response
        # not after the list already: who may list pods may not be allowed to watch them
        self.set_ready()
        if self.is_closed:
            _break(response)
        try:
            for line in split_lines(response.stream(1 << 16, decode_content=True)):
                if line:
                    self._handle_event(json.loads(line))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as failure:
            if self.is_closed:
                return
            # resumed at the last version; repeated events are harmless
            msg = f"the stream of pods broke: {failure}"
            raise BackendUnavailableError(msg) from failure
        finally:
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


def _uid(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("uid"))
