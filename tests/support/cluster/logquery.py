"""Which part of a log a request asks for, and what is wrong with how it asks."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

from .refusals import Cause, Refused
from .requests import Asked
from .runtime import LogQuery

__all__ = ["log_query"]

_LEAST = {"sinceSeconds": (1, "greater than 0"), "limitBytes": (1, "greater than 0")}
_LEAST["tailLines"] = (0, "greater than or equal to 0")


def log_query(asked: Asked) -> LogQuery:
    """Read the query of a request for a log."""
    query = asked.query
    causes = list(_causes(asked))
    if causes:
        texts = [str(cause) for cause in causes]
        text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        told = [
            {"reason": item.reason, "message": item.message, "field": item.field} for item in causes
        ]
        details = {"name": asked.name, "kind": "PodLogOptions", "causes": told}
        message = f'PodLogOptions "{asked.name}" is invalid: {text}'
        raise Refused(422, "Invalid", message, details)
    return LogQuery(
        follow=asked.flag("follow"),
        tail=int(query["tailLines"]) if "tailLines" in query else None,
        since=_since(asked),
        timestamps=asked.flag("timestamps"),
        limit=int(query["limitBytes"]) if "limitBytes" in query else None,
    )


def _causes(asked: Asked) -> Iterator[Cause]:
    for name, (least, words) in _LEAST.items():
        if name in asked.query and int(asked.query[name]) < least:
            yield Cause.invalid(name, int(asked.query[name]), f"must be {words}")
    if "stream" in asked.query:
        # behind a feature gate that is off by default
        yield Cause.forbidden("stream", "may not be specified")


def _since(asked: Asked) -> float | None:
    if "sinceSeconds" in asked.query:
        return time.time() - int(asked.query["sinceSeconds"])
    text = asked.query.get("sinceTime")
    if text is None:
        return None
    try:
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError as error:
        form = "2006-01-02T15:04:05Z07:00"
        message = f'parsing time "{text}" as "{form}": cannot parse "{text}" as "2006"'
        raise Refused.bad_request(message) from error
