"""What the cluster says when it refuses: its words, what mends it, what may be asked again; pure."""

from __future__ import annotations

import contextlib
import json
import re

from fiber.exceptions import BackendError
from fiber_k8s import rbac

__all__ = ["ApiError", "advice", "is_passing", "missing_account", "refused", "words"]

#: what a server says that may be said something else soon
_PASSING = frozenset({500, 502, 503, 504})
#: two who were counted by one quota at once; the server gives up after three tries of its own
_RACE = re.compile(r"quotas\S* .*the object has been modified")
_ACCOUNT = re.compile(
    r"error looking up service account (?P<where>[^/\s]+)/(?P<name>\S+): serviceaccount"
)


class ApiError(BackendError):
    """The cluster refused a call.

    Args:
        message: in Fiber's words, with the cluster's.
        status: HTTP status.
        reason: the API's word for it, such as ``NotFound``, ``Forbidden`` or ``AlreadyExists``.
    """

    def __init__(self, message: str, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        #: whether the same call may be taken soon
        self.is_passing = False
        #: seconds that the cluster wants to be left in peace
        self.retry_after = 0.0


def refused(what: str, status: int, text: str, retry_after: str | None) -> ApiError:
    """The error that an answer is.

    Args:
        what: the cluster was asked to do.
        status: HTTP's.
        text: the body.
        retry_after: the header of that name.
    """
    message, reason = words(text)
    msg = f"the cluster refused to {what}: {message}{advice(status, message)}"
    error = ApiError(msg, status, reason)
    error.is_passing = is_passing(status, message)
    with contextlib.suppress(TypeError, ValueError):
        error.retry_after = float(str(retry_after))
    return error


def words(text: str) -> tuple[str, str]:
    """Message and reason of an answer: those of a Status, or the text that a proxy wrote.

    Args:
        text: the body.
    """
    with contextlib.suppress(ValueError):
        told = json.loads(text)
        if isinstance(told, dict):
            return str(told.get("message") or text).strip(), str(told.get("reason") or "")
    return text.strip(), ""


def advice(status: int, message: str) -> str:
    """What mends a refusal, as the end of a sentence; "" where the cluster's words say it all.

    Args:
        status: HTTP's.
        message: the cluster's words.
    """
    if status == 401:
        return "; the credentials are not accepted: log in again, or see `kubectl auth whoami`"
    if status != 403:
        return ""
    if account := _ACCOUNT.search(message):
        where, name = account["where"], account["name"]
        if name == rbac.EVERYBODYS:
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
    """The service account that a pod names and its namespace lacks; None for another refusal.

    Args:
        message: the cluster's words.
    """
    found = _ACCOUNT.search(message)
    return None if found is None else found["name"]


def is_passing(status: int, message: str) -> bool:
    """True where the same call may be taken soon, given that making it twice does no harm.

    Args:
        status: HTTP's.
        message: the cluster's words.
    """
    if status == 403:
        # a namespace that was made a moment ago has none yet
        return missing_account(message) == rbac.EVERYBODYS
    return status in _PASSING or (status == 409 and _RACE.search(message) is not None)
