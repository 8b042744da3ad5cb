"""Client of the Kubernetes API: JSON calls with retries, and errors that say how to fix them.

It uses the official client's configuration (credentials, proxies, certificates) and its urllib3
pool, but not its generated classes: objects are plain dictionaries as the API has them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

from fiber.backend_parts.containers import innermost
from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError
from fiber.model import Timing
from fiber_k8s import flow_control, rbac
from fiber_k8s.config import K8sConfig, K8sTiming
from fiber_k8s.connection import Connection, connect

_SAFE = frozenset({"GET", "DELETE"})
#: of bodies that are no plain JSON; a PATCH is one of RFC 7386
_CONTENT_TYPES = {"PATCH": "application/merge-patch+json"}
#: retries of a call, unless its caller decides
_TRIES = 6
#: HTTP status codes of errors that may pass
_TRANSIENT = frozenset({500, 502, 503, 504})
#: conflict of two creations in one quota; the server gives up after three tries of its own
_RACE = re.compile(r"quotas\S* .*the object has been modified")
_NO_NAMESPACE = re.compile(r'namespaces "(?P<name>[^"]+)" not found')
_ACCOUNT = re.compile(
    r"error looking up service account (?P<where>[^/\s]+)/(?P<name>\S+): serviceaccount"
)


class ApiError(BackendError):
    """The cluster refused a call; the text has its own message, and how to fix that.

    Args:
        what: the call in words, for the text.
        status: HTTP status code.
        body: of the response.
        retry_after: the header of that name.
    """

    def __init__(self, what: str, status: int, body: str, retry_after: str | None) -> None:
        message, reason = status_message(body)
        super().__init__(f"the cluster refused to {what}: {message}{advice(status, message)}")
        self.status = status
        #: ``reason`` of the API's Status, such as ``NotFound`` or ``AlreadyExists``
        self.reason = reason
        #: whether the same call may succeed soon
        self.is_transient = is_transient(status, message)
        #: seconds of the header ``Retry-After``; 0 without one
        self.retry_after = 0.0
        with contextlib.suppress(TypeError, ValueError):
            self.retry_after = float(str(retry_after))


def status_message(text: str) -> tuple[str, str]:
    """Return message and reason of an error response: a Status's, or a proxy's text and ""."""
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(text)
        if isinstance(body, dict):
            return str(body.get("message") or text).strip(), str(body.get("reason") or "")
    return text.strip(), ""


def advice(status: int, message: str) -> str:
    """Return how to fix a refusal, as the end of a sentence; "" where the message says it all."""
    if status == 401:
        return "; the credentials are not accepted: log in again, or see `kubectl auth whoami`"
    if status == 404 and (missing := _NO_NAMESPACE.search(message)):
        return (
            f"; make it: kubectl create namespace {missing['name']}, or name another one with "
            "FIBER_K8S_NAMESPACE"
        )
    if status != 403:
        return ""
    if "because it is being terminated" in message:
        return "; name a namespace that stays with FIBER_K8S_NAMESPACE"
    if account := _ACCOUNT.search(message):
        where, name = account["where"], account["name"]
        if name == rbac.DEFAULT_ACCOUNT:
            return (
                f"; each namespace gets it soon after it is made: see `kubectl get sa -n {where}`"
            )
        chosen = "" if name == rbac.ACCOUNT else f" --service-account {name}"
        return f"; make it: fiber k8s rbac --namespace {where}{chosen} | kubectl apply -f -"
    if "violates PodSecurity" in message:
        return (
            "; have pods ask for no more than that: FIBER_K8S_SECURITY=restricted, in an image whose "
            "user is not root (USER 1000), or what is missing in FIBER_K8S_POD_TEMPLATE"
        )
    return f"; grant it: {rbac.grant(message)}" if "cannot " in message else ""


def missing_account(message: str) -> str | None:
    """Return the name of a missing service account; None where the refusal has another reason."""
    found = _ACCOUNT.search(message)
    return None if found is None else found["name"]


def is_transient(status: int, message: str) -> bool:
    """Return whether the same call may succeed soon; only idempotent calls may be repeated."""
    if status == 403:
        # a new namespace has no default account yet
        return missing_account(message) == rbac.DEFAULT_ACCOUNT
    return status in _TRANSIENT or (status == 409 and _RACE.search(message) is not None)


class Client:
    """A client of one cluster, as one user, in one namespace; thread-safe, connected on first use.

    Args:
        config: names the cluster and namespace; else kubectl's current ones, or the own pod's.
        timing: durations of the run.
    """

    def __init__(self, config: K8sConfig, timing: Timing = Timing()) -> None:
        self._config = config
        #: durations of the run, and those of this backend
        self.core_timing = timing
        self.timing = K8sTiming.at(self.core_timing.scale)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._connected = float("-inf")
        self._clock_skew = 0.0
        self._owner = os.getpid()

    # -- connecting

    @property
    def connection(self) -> Connection:
        """The address and credentials of the cluster, read on first use.

        Raises:
            BackendUnavailableError: there is no configuration, or it cannot be read.
        """
        with self._lock:
            if self._connection is None:
                self._connection = connect(self._config, self.timing)
                self._connected = time.monotonic()
            return self._connection

    def renew(self, refused: Connection) -> bool:
        """Read the configuration again after the cluster refused its credentials.

        Login plugins do not always say when the credentials that they give expire.

        Args:
            refused: the connection whose credentials were refused.

        Returns:
            False where they were read a moment ago, so that a retry is in vain.
        """
        with self._lock:
            if self._connection is not refused:
                # another thread has done it
                return True
            if time.monotonic() - self._connected < self.timing.login:
                return False
            self._connection = connect(self._config, self.timing)
            self._connected = time.monotonic()
        # connections in use are closed by their users
        refused.close()
        return True

    @property
    def is_configured(self) -> bool:
        """True once a configuration was read."""
        return self._connection is not None

    @property
    def namespace(self) -> str:
        """Namespace of the pods."""
        return self.connection.namespace

    def now(self) -> float:
        """Return the time by the cluster's clock, from its last response; seconds since the epoch."""
        return time.time() + self._clock_skew

    def close(self) -> None:
        """Close all connections; a later call connects again."""
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
        timeout: float | None = None,
        again: Callable[[BackendError], bool] | None = None,
    ) -> Any:
        """Make one call, with retries where it is idempotent; return the decoded JSON.

        Args:
            method: HTTP method.
            path: as :meth:`path` returns it.
            what: the call in words, for messages: "the cluster refused to …".
            body: sent as JSON.
            query: parameters.
            timeout: seconds without an answer for one try; None: as long as for any call.
            again: called with the error before each retry, False ends them; only for calls that may
                be repeated. None: a few retries of GET and DELETE.

        Raises:
            ApiError: it was refused.
            BackendUnavailableError: the cluster cannot be reached.
        """
        waits = flow_control.backoff(
            self.timing.backoff, self.timing.backoff_most, None if again else _TRIES
        )
        is_safe = again is not None or method in _SAFE
        while True:
            try:
                response = self.open(method, path, what, body=body, query=query, timeout=timeout)
            except (ApiError, BackendUnavailableError) as error:
                wait, passes, rest = next(waits, None), is_safe, 0.0
                if isinstance(error, ApiError):
                    passes = error.status == 429 or (is_safe and error.is_transient)
                    rest = error.retry_after
                if not passes or wait is None or not (again is None or again(error)):
                    raise
                # no event reports that a network is back
                time.sleep(max(wait, rest))
                continue
            try:
                with self._translated_errors(what):
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
        timeout: float | None = None,
    ) -> Any:
        """Make one call without retries; return urllib3's response, whose body is not read yet.

        Raises:
            ApiError: it was refused.
            BackendUnavailableError: the cluster cannot be reached.
        """
        if query:
            path += "?" + urlencode({k: v for k, v in query.items() if v is not None})
        data = None if body is None else json.dumps(body).encode()
        while True:
            connection = self.connection
            with self._translated_errors(what):
                headers = {"Accept": "application/json", **connection.headers()}
                if data is not None:
                    headers["Content-Type"] = _CONTENT_TYPES.get(method, "application/json")
                response = connection.request(
                    method, connection.host + path, headers, data, timeout or self.timing.answer
                )
            self._update_clock_skew(response.headers.get("Date"))
            if 200 <= response.status < 300:
                return response
            with self._translated_errors(what):
                text = response.data.decode("utf-8", "replace")
            response.release_conn()
            if response.status != 401 or not self.renew(connection):
                break
        raise ApiError(what, response.status, text, response.headers.get("Retry-After"))

    def path(self, kind: str, name: str = "", sub: str = "", *, group: str = "") -> str:
        """Return the path of an object, or of all objects of a resource, in the namespace.

        Args:
            kind: resource, in plural such as ``pods``.
            name: of one object.
            sub: subresource, such as ``log``.
            group: API group and version, such as ``coordination.k8s.io/v1``.
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
        is_needed: Callable[[], bool] = lambda: True,
    ) -> dict[str, Any] | None:
        """Create an object with a unique name; return it as the cluster has it.

        Retried for a while where the cluster is not reachable or busy.

        Args:
            kind: resource, in plural such as ``pods``.
            body: the object.
            what: the call in words, for messages.
            group: API group and version.
            is_needed: called before each retry; False ends them.

        Returns:
            None where an earlier try had created it, but its response was lost.

        Raises:
            SubmitError: it was refused, with the cluster's message.
            BackendUnavailableError: the cluster cannot be reached.
        """
        window = flow_control.RetryWindow(what, self.core_timing)
        try:
            made = self.call(
                "POST",
                self.path(kind, group=group),
                what,
                body=body,
                query={"fieldValidation": "Strict"},
                again=lambda error: window.allows(error) and is_needed(),
            )
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return None
            raise SubmitError(str(error)) from error
        return dict(made)

    def create_pod(
        self, body: Mapping[str, Any], is_needed: Callable[[], bool] = lambda: True
    ) -> dict[str, Any]:
        """Create a pod; return it as the cluster has it.

        Raises:
            SubmitError: it was refused, with the cluster's message.
            BackendUnavailableError: the cluster cannot be reached.
        """
        name = str(body["metadata"]["name"])
        made = self.create("pods", body, f"create pod {name}", is_needed=is_needed)
        return self.pod(name) if made is None else made

    def pod(self, name: str) -> dict[str, Any]:
        """Read one pod."""
        return dict(self.call("GET", self.path("pods", name), f"read pod {name}"))

    def own_pod(self) -> dict[str, Any] | None:
        """Read the pod that this process runs in; None outside of one."""
        own = self.connection.own_pod
        if own is None:
            return None
        path = f"/api/v1/namespaces/{own.namespace}/pods/{own.name}"
        return dict(self.call("GET", path, "read the program's own pod"))

    def pods(self, selector: str, **query: Any) -> list[dict[str, Any]]:
        """List the pods that a label selector matches."""
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
        """Delete an object and, in the background, its dependents; False where it does not exist.

        Args:
            kind: resource, in plural such as ``pods``.
            name: of the object.
            group: API group and version.
            grace: grace period of a pod, in seconds.
            uid: precondition: False where another object has the name.
            version: precondition, the resource version: False where it was changed since.
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
            # 409: a precondition does not hold
            if error.status == 404 or (conditions and error.status == 409):
                return False
            raise
        return True

    # -- within

    def _update_clock_skew(self, date: str | None) -> None:
        with contextlib.suppress(TypeError, ValueError):
            server_time = parsedate_to_datetime(str(date)).timestamp()
            # the header has whole seconds, and the response took time: less than 2 s is no skew
            found = server_time + 0.5 - time.time()
            self._clock_skew = found if abs(found) > 2.0 else 0.0

    @contextlib.contextmanager
    def _translated_errors(self, what: str) -> Any:
        """Within, errors of the network are raised as BackendUnavailableError."""
        import urllib3

        try:
            yield
        except (urllib3.exceptions.HTTPError, OSError) as failure:
            host = self._connection.host if self._connection else "the cluster"
            msg = (
                f"the cluster at {host} cannot be asked to {what}: {innermost(failure)}; see whether "
                f"`kubectl get pods` works, and set KUBECONFIG or FIBER_K8S_CONTEXT"
            )
            # without urllib3's chain of wrapped errors, which says no more
            raise BackendUnavailableError(msg) from None
