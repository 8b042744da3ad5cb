"""Names and labels that the cluster takes, made of any words; pure."""

from __future__ import annotations

import re
import secrets

__all__ = ["CONTAINER", "PREFIX", "label_value", "object_name", "unique_name"]

#: put before the keys of labels and annotations that are ours
PREFIX = "fiber/"
#: the container that runs a job
CONTAINER = "fiber"
#: the longest name that is a pod's host name as well
_NAME = 63
_LABEL = 63


def unique_name(name: str) -> str:
    """A name for a pod that is a host name too, and that no other pod has."""
    mark = secrets.token_hex(4)
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    word = word[: _NAME - len(mark) - 1].strip("-")
    return f"{word or 'job'}-{mark}"


def object_name(run_id: str) -> str:
    """The name of a run's Lease and Secret."""
    return f"fiber-{re.sub(r'[^a-z0-9]+', '-', run_id.lower()).strip('-')}"


def label_value(text: str) -> str:
    """The nearest value that a label can have; empty where nothing of it is left."""
    value = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_LABEL]
    return value.strip("-_.")
