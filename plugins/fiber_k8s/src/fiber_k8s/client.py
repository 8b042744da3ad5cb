"""Calls of the cluster's API over the official client's configuration, with errors in Fiber's words."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

import attrs

from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError
from fiber_k8s import pacing
from fiber_k8s.config import K8sConfig
from fiber_k8s.connecting import Connection, connect
from fiber_k8s.refusals import ApiError, refused

__all__ = ["ApiError", "Client"]

#: seconds for which the cluster may think about one call
_TIMEOUT = 30.0
_SAFE = frozenset({"GET", "DELETE"})
#: seconds for which credentials are what they were: no plugin is asked for them more often
_FRESH = 10.0


@attrs.define
class _Counted:
    calls: int = 0
    by_kind: dict[str, int] = attrs.field(factory=dict)


class Client:
    """One cluster, as one user, in one namespace; connected on first use, thread-safe.

    Args:
        config: which cluster and namespace; else those that kubectl would use, or the pod's own.
    """

    def __init__(self, config: K8sConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._connected = float("-inf")
        self._counted = _Counted()
        self._skew = 0.0
        self._owner = os.getpid()

    # -- connecting

    @property
    def connection(self) -> Connection:
        """The official client's configuration, and who and where we are.

        Raises:
            BackendUnavailableError: there is no configuration, or it cannot be read.
        """
        with self._lock:
            if self._connection is None:
                self._connection = connect(self._config)
                self._connected = time.monotonic()
            return self._connection

    def renew(self, refused: Connection) -> bool:
        """Read the configuration again, whose credentials the cluster did not accept.

        Login plugins do not always say how long what they give is good for.

        Args:
            refused: the connection with those credentials.

        Returns:
            False where they are as new as can be, and asking again is in vain.
        """
        with self._lock:
            if self._connection is not refused:
                # another thread has done it
                return True
            if time.monotonic() - self._connected < _FRESH:
                return False
            self._connection = connect(self._config)
            self._connected = time.monotonic()
        # those that are in use are closed by whoever uses them
        refused.close()
        return True

    @property
    def namespace(self) -> str:
        """Where the pods are."""
        return self.connection.namespace

    @property
    def calls(self) -> int:
        """How many requests the cluster was sent."""
        return self._counted.calls

    @property
    def calls_by_kind(self) -> dict[str, int]:
        """How many of each kind, such as ``POST pods``."""
        with self._lock:
            return dict(self._counted.by_kind)

    def now(self) -> float:
        """Seconds since the epoch by the cluster's clock, as its last answer told it."""
        return time.time() + self._skew

    def close(self) -> None:
        """Close all connections; what is asked later connects again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- calls

    def call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout: float = _TIMEOUT,
        again: Callable[[BackendError], bool] | None = None,
    ) -> Any:
        """Make one call, again where that is safe and the cluster is only busy; the answer, decoded.

        Args:
            method: HTTP's.
            path: as :meth:`path` makes it.
            what: what the cluster is asked to do, for messages.
            body: sent as JSON.
            query: parameters.
            content_type: of the body.
            timeout: seconds for one try.
            again: asked before each further try of a call that does no harm when it is made twice,
                with what became of the last; None for what is so by its method, and a few tries.

        Raises:
            ApiError: it was refused.
            BackendUnavailableError: the cluster cannot be asked.
        """
        waits = pacing.backoff(tries=None) if again else pacing.backoff()
        is_safe = again is not None or method in _SAFE
        while True:
            try:
                response = self.open(
                    method, path, what, body=body, query=query, content_type=content_type,
                    timeout=timeout,
                )  # fmt: skip
            except ApiError as error:
                wait = next(waits, None)
                passes = error.status == 429 or (is_safe and error.is_passing)
                if not passes or wait is None or not (again is None or again(error)):
                    raise
                time.sleep(max(wait, error.retry_after))
                continue
            except BackendUnavailableError as error:
                wait = next(waits, None)
                if not is_safe or wait is None or not (again is None or again(error)):
                    raise
                # nothing tells when a network is back
                time.sleep(wait)
                continue
            try:
                with self._asking(what):
                    data = response.data
            finally:
                response.release_conn()
            return json.loads(data) if data else None

    def open(
        self,
        method: str,
        path: str,
        what: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout: float | None = _TIMEOUT,
    ) -> Any:
        """Make one call, once; urllib3's response, whose body is not read yet.

        Raises:
            ApiError: it was refused.
            BackendUnavailableError: the cluster cannot be asked.
        """
        if query:
            path += "?" + urlencode({k: v for k, v in query.items() if v is not None})
        data = None if body is None else json.dumps(body).encode()
        while True:
            connection = self.connection
            self._count(method, path)
            with self._asking(what):
                headers = {"Accept": "application/json", **connection.headers()}
                if data is not None:
                    headers["Content-Type"] = content_type
                response = connection.request(
                    method, connection.host + path, headers, data, timeout
                )
            self._learn_time(response.headers.get("Date"))
            if 200 <= response.status < 300:
                return response
            with self._asking(what):
                text = response.data.decode("utf-8", "replace")
            response.release_conn()
            if response.status != 401 or not self.renew(connection):
                break
        raise refused(what, response.status, text, response.headers.get("Retry-After"))

    def path(self, kind: str, name: str = "", sub: str = "", *, group: str = "") -> str:
        """The path of an object, or of all of a kind, in our namespace.

        Args:
            kind: plural, such as ``pods``.
            name: of one object.
            sub: part of it, such as ``log``.
            group: of the API with its version, such as ``coordination.k8s.io/v1``.
        """
        base = f"/apis/{group}" if group else "/api/v1"
        words = [base, "namespaces", quote(self.namespace, safe=""), kind]
        words += [quote(word, safe="") for word in (name, sub) if word]
        return "/".join(words)

    # -- objects

    def create(
        self,
        kind: str,
        body: Mapping[str, Any],
        what: str,
        *,
        group: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> dict[str, Any] | None:
        """Create an object whose name no other has; as the cluster has it.

        It is tried again for a while where the cluster is away or busy.

        Args:
            kind: plural, such as ``pods``.
            body: the object.
            what: what the cluster is asked to do, for messages.
            group: of the API with its version.
            is_wanted: asked before each further try.

        Returns:
            None where an earlier try had created it, and the answer was lost on its way.

        Raises:
            SubmitError: it was refused, with the cluster's words.
            BackendUnavailableError: the cluster cannot be asked.
        """
        patience = pacing.Patience(what)
        try:
            made = self.call(
                "POST",
                self.path(kind, group=group),
                what,
                body=body,
                query={"fieldValidation": "Strict"},
                again=lambda error: patience.lasts(error) and is_wanted(),
            )
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return None
            raise SubmitError(str(error)) from error
        return dict(made)

    def create_pod(
        self, body: Mapping[str, Any], is_wanted: Callable[[], bool] = lambda: True
    ) -> dict[str, Any]:
        """Create a pod; as the cluster has it.

        Raises:
            SubmitError: it was refused, with the cluster's words.
            BackendUnavailableError: the cluster cannot be asked.
        """
        name = str(body["metadata"]["name"])
        made = self.create("pods", body, f"create pod {name}", is_wanted=is_wanted)
        return self.pod(name) if made is None else made

    def pod(self, name: str) -> dict[str, Any]:
        """One pod as it is now."""
        return dict(self.call("GET", self.path("pods", name), f"read pod {name}"))

    def pods(self, selector: str, **query: Any) -> list[dict[str, Any]]:
        """Pods with these labels."""
        query = {"labelSelector": selector, **query}
        found = self.call("GET", self.path("pods"), "list pods", query=query)
        return list(found.get("items") or ())

    def delete(
        self,
        kind: str,
        name: str,
        *,
        group: str = "",
        grace: int | None = None,
        uid: str | None = None,
        version: str | None = None,
    ) -> bool:
        """Delete an object and what it owns; False where it is gone already.

        Args:
            kind: plural, such as ``pods``.
            name: of it.
            group: of the API with its version.
            grace: seconds that a pod is given.
            uid: of the object that is meant; False where another one has its name.
            version: its resource version; False where it was changed since.
        """
        body: dict[str, Any] = {
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
        }  # fmt: skip
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        conditions = {"uid": uid, "resourceVersion": version}
        conditions = {key: value for key, value in conditions.items() if value is not None}
        if conditions:
            body["preconditions"] = conditions
        try:
            self.call("DELETE", self.path(kind, name, group=group), f"delete {name}", body=body)
        except ApiError as error:
            # with another uid it is another one of that name
            if error.status == 404 or (conditions and error.status == 409):
                return False
            raise
        return True

    # -- within

    def _count(self, method: str, path: str) -> None:
        path, _, query = path.partition("?")
        words = path.partition("/namespaces/")[2].split("/")
        kind = "/".join(words[1:2] + words[3:4]) or path
        verb = "WATCH" if "watch=true" in query.split("&") else method
        with self._lock:
            self._counted.calls += 1
            key = f"{verb} {kind}"
            self._counted.by_kind[key] = self._counted.by_kind.get(key, 0) + 1

    def _learn_time(self, date: str | None) -> None:
        with contextlib.suppress(TypeError, ValueError):
            told = parsedate_to_datetime(str(date)).timestamp()
            # whole seconds, and half the way of the answer: only what is more is a difference
            found = told + 0.5 - time.time()
            self._skew = found if abs(found) > 2.0 else 0.0

    @contextlib.contextmanager
    def _asking(self, what: str) -> Any:
        """Within, what the network raises becomes an error of Fiber's."""
        import urllib3

        try:
            yield
        except (urllib3.exceptions.HTTPError, OSError) as failure:
            host = self._connection.host if self._connection else "the cluster"
            msg = (
                f"the cluster at {host} cannot be asked to {what}: {_short(failure)}; see whether "
                f"`kubectl get pods` works, and set KUBECONFIG or FIBER_K8S_CONTEXT"
            )
            # without what urllib3 raised one within the other: the words are all that they say
            raise BackendUnavailableError(msg) from None


def _short(error: BaseException) -> str:
    # urllib3 wraps what the system said several times; the innermost words are the cause
    seen: BaseException = error
    while (inner := seen.__cause__ or seen.__context__) is not None:
        seen = inner
    return str(seen) or type(seen).__name__
