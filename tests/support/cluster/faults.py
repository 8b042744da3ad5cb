"""What goes wrong on purpose: requests that are refused, for a while or a number of times."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from .refusals import Refused
from .requests import Call

__all__ = ["Faults", "Refusal"]

_RACE = (
    'Operation cannot be fulfilled on resourcequotas "gke-resource-quotas": the object has been '
    "modified; please apply your changes to the latest version and try again"
)
_REASONS = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden"),
    409: ("Conflict", _RACE),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "Internal error occurred: the emulator was told to fail"),
    502: ("", "bad gateway"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within requested timeout"),
}


@attrs.define
class Refusal:
    """Requests that are refused; ends with ``stop``, with its block, or after its times."""

    code: int
    retry_after: int | None
    matching: Callable[[Call], bool]
    #: how often it still refuses; None: until it is stopped
    times: int | None
    #: how often it has refused
    count: int = 0
    _over: bool = False

    def stop(self) -> None:
        """Refuse no more."""
        self._over = True

    def __enter__(self) -> Refusal:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def meets(self, call: Call) -> bool:
        """Whether it refuses a call; counts it if so."""
        if self._over or (self.times is not None and self.count >= self.times):
            return False
        if not self.matching(call):
            return False
        self.count += 1
        return True


@attrs.define
class Faults:
    """All refusals that are set."""

    refusals: list[Refusal] = attrs.field(factory=list)

    def check(self, call: Call) -> None:
        """Refuse a call that one of them is about."""
        for refusal in self.refusals:
            if refusal.meets(call):
                reason, message = _REASONS.get(refusal.code, ("", "refused"))
                details: dict[str, object] | None = None
                headers = {}
                if refusal.retry_after is not None:
                    headers["Retry-After"] = str(refusal.retry_after)
                    details = {"retryAfterSeconds": refusal.retry_after}
                # whoever limits the flow of requests writes no Status
                plain = refusal.code == 429
                raise Refused(refusal.code, reason, message, details, headers, plain=plain)
