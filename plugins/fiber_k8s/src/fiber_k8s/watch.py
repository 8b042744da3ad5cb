"""Follows the pods of one run: a list, then what changes, by one stream that is made anew."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import urllib3

from fiber.exceptions import BackendError, BackendUnavailableError, FiberError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.names import PREFIX
from fiber_k8s.pacing import Patience, backoff

__all__ = ["Watch"]

log = logging.getLogger("fiber")

#: seconds after which the cluster is to end a stream, so that one which died unseen is made anew
_LENGTH = 240
#: seconds without a byte after which a stream is taken for dead; it has bookmarks every minute
_SILENCE = 90.0
#: seconds that the thread may take to end
_LAST = 5.0
_PAGE = 500
#: seconds that a stream lasts which is not refused
_SHORT = 5.0
#: seconds between two tries at most: an end is told within two, also when the cluster was away, and
#: what it takes then is a connection, an answer that much was forgotten, a list, and a log
_APART = 0.5


class Expired(Exception):  # noqa: N818 - a word within this module, no error
    """The cluster does not remember so far back: a new list is needed."""


class Watch:
    """One stream, in a thread of its own.

    Args:
        client: the cluster.
        run_id: whose pods.
        on_pod: told of each pod as it is.
        on_gone: told of each pod that was deleted, as it was at last.
    """

    def __init__(
        self,
        client: Client,
        run_id: str,
        on_pod: Callable[[Mapping[str, Any]], None],
        on_gone: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._client = client
        self._selector = f"{PREFIX}run={run_id}"
        self._on_pod = on_pod
        self._on_gone = on_gone
        #: the pods there are, as they were told last
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._version: str | None = None
        #: True once a stream has told something
        self._heard = False
        self._closed = threading.Event()
        self._ready = threading.Event()
        self._failure: FiberError | None = None
        self._lock = threading.Lock()
        self._response: Any = None
        self._thread = threading.Thread(target=self._run, name="fiber-k8s-watch", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Return once nothing can be missed any more.

        Raises:
            BackendUnavailableError: the cluster could not be asked, for as long as it is tried.
            BackendError: it refused.
        """
        self._ready.wait()
        if self._failure is not None:
            # each of those who wait has frames of its own
            raise self._failure.with_traceback(None)

    @property
    def is_alive(self) -> bool:
        """False where the cluster could not be asked in the first place."""
        return self._failure is None

    def cut(self) -> None:
        """Break the connection, as a network may; it is made anew."""
        with self._lock:
            response = self._response
        if response is not None:
            _break(response)

    def close(self) -> None:
        """End the stream and its thread. Idempotent."""
        self._closed.set()
        self.cut()
        if self._thread is not threading.current_thread():
            self._thread.join(_LAST)

    # -- the thread

    def _run(self) -> None:
        try:
            # that there is none is no matter of time
            _ = self._client.connection
        except FiberError as error:
            self._fail(error)
            return
        waits = backoff(most=_APART, tries=None)
        patience = Patience("list pods")
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
                    # ends that nobody has told wait for the list
                    is_old = True
                    continue
            except FiberError as error:
                if not self._ready.is_set():
                    if not (_may_pass(error) and patience.lasts(error)):
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
                # one object that makes no sense must not hide those after it
                log.exception("fiber: what the cluster said of a pod could not be read")
                self._version = None
            if self._heard or time.monotonic() - began > _SHORT:
                waits, self._heard, is_old = backoff(most=_APART, tries=None), False, False
            # a cluster that is gone tells nobody when it is back, and one that ends each stream at
            # once is not to be asked without a pause
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
                # it is tried again by the thread, at shorter intervals
                page = self._client.call(
                    "GET", self._client.path("pods"), "list pods", query=query, again=_never
                )
            except ApiError as error:
                if error.status != 410:
                    raise
                # the list is older than what is remembered: from its beginning
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
                self._on_gone(pod)
        for pod in found.values():
            self._on_pod(pod)

    def _follow(self) -> None:
        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": _LENGTH,
        }
        try:
            response = self._client.open(
                "GET", self._client.path("pods"), "watch pods", query=query, timeout=_SILENCE
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
            for line in _lines(response):
                self._told(json.loads(line))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as failure:
            if self._closed.is_set():
                return
            # it is gone on with where it broke; what is told again is no news
            msg = f"the stream of pods broke: {failure}"
            raise BackendUnavailableError(msg) from failure
        finally:
            with self._lock:
                self._response = None
            with contextlib.suppress(Exception):
                # what closing raises differs with the transport, and it is over in any case
                response.close()

    def _told(self, event: Mapping[str, Any]) -> None:
        kind, thing = event["type"], event["object"]
        if kind == "ERROR":
            if thing.get("code") == 410:
                raise Expired
            msg = f"the cluster ended the stream of pods: {thing.get('message')}"
            raise BackendUnavailableError(msg)
        self._version = thing["metadata"]["resourceVersion"]
        self._heard = True
        if kind == "BOOKMARK":
            return
        name = thing["metadata"]["name"]
        if kind == "DELETED":
            self._pods.pop(name, None)
            self._on_gone(thing)
        else:
            self._pods[name] = thing
            self._on_pod(thing)


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(1 << 16, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)
    if rest:
        yield rest


def _break(response: Any) -> None:
    """Wake whoever reads a response: closing it from another thread would wait for that one."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        connection = getattr(response, "connection", None) or response._connection  # noqa: SLF001
        connection.sock.shutdown(socket.SHUT_RDWR)


def _never(_: BackendError) -> bool:
    return False


def _may_pass(error: FiberError) -> bool:
    """True where the cluster may answer soon."""
    if isinstance(error, ApiError):
        return error.is_passing or error.status == 429
    return isinstance(error, BackendUnavailableError)


def _uid(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("uid"))
