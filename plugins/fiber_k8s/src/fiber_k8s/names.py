"""Valid object names and label values (RFC 1123), made of any text; pure."""

from __future__ import annotations

import re
import secrets

#: prefix of the keys of Fiber's labels and annotations
PREFIX = "fiber/"
#: the container that runs a job
CONTAINER = "fiber"
#: longest name of a pod that is also its host name (a DNS label)
_NAME = 63
_LABEL = 63


def unique_name(name: str) -> str:
    """Return a unique name for a pod, which is a DNS label."""
    suffix = secrets.token_hex(4)
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    word = word[: _NAME - len(suffix) - 1].strip("-")
    return f"{word or 'job'}-{suffix}"


def object_name(run_id: str) -> str:
    """Return the name of a run's Lease and Secret."""
    return f"fiber-{re.sub(r'[^a-z0-9]+', '-', run_id.lower()).strip('-')}"


def label_value(text: str) -> str:
    """Return the nearest valid label value; empty where no character of the text is allowed."""
    value = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_LABEL]
    return value.strip("-_.")
