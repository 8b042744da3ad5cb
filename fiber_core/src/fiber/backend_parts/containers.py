"""What backends that run containers have in common: errors, settings, labels, times, capabilities.

Engines give a container fourteen of Linux's capabilities, of which root has the use. Those that are left are the ones
by which root reads, writes and gives away the files of others, changes its user and binds low ports: images
that run as root count on them, also on volumes whose files belong to somebody else.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from fiber._base import values
from fiber.model import JobSpec

__all__ = [
    "UNNEEDED_CAPABILITIES",
    "arguments",
    "innermost",
    "is_reduced",
    "named",
    "timestamp",
    "user_name",
]

#: raw packets (and so others' addresses), devices, ``chroot``, the audit log, and passing
#: capabilities on
UNNEEDED_CAPABILITIES = ("AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_CHROOT")

#: RFC 3339; engines written in Go have more digits than Python's own parser takes
_TIME = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)"


def is_reduced(security: str, spec: JobSpec) -> bool:
    """True for a job whose container does without privileges, by a backend's setting ``security``.

    With ``restricted`` all do, with ``reduced`` those of processes and workers, with ``image`` none.
    """
    return security == "restricted" or (security == "reduced" and spec.entry is not None)


def arguments(label: str) -> tuple[str, ...]:
    """A job's arguments, from the JSON in its container's label; none where that makes no sense."""
    try:
        return tuple(map(str, json.loads(label)))
    except (ValueError, TypeError, RecursionError):
        return ()


def timestamp(text: str | None) -> float | None:
    """Seconds since the epoch of a time (RFC 3339); None where there is none."""
    # a program that has the plugin of a container engine may use another backend
    import re
    from datetime import datetime

    match = re.fullmatch(_TIME, text or "")
    if match is None:
        return None
    moment = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
    return moment.timestamp() + float(match[2] or 0)


def innermost(error: BaseException) -> str:
    """Words of the first of a chain of errors: HTTP clients wrap the system's several times."""
    first = error
    while (inner := first.__cause__ or first.__context__) is not None:
        first = inner
    return str(first) or type(first).__name__


@functools.cache
def user_name() -> str:
    """The user's name, or id where there is no name, for labels on a platform that others use too."""
    # likewise
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # a user id without a name
        return str(os.getuid())


def named(separator: str) -> Any:
    """Validator of a setting that is a list of names, each with a value behind the separator."""

    def check(_: Any, attribute: values.Field, given: tuple[str, ...]) -> None:
        for value in given:
            name, found, _ = value.partition(separator)
            if not name or not found:
                msg = f"{attribute.name} is a list of NAME{separator}VALUE, got {value!r}"
                raise ValueError(msg)

    return check
