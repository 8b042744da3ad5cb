"""The life of a pod as a watch tells it, short enough to be compared with a recording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["life", "moments"]


def life(kind: str, pod: dict[str, Any]) -> str:
    """One change of a pod, in words.

    Args:
        kind: of the change.
        pod: after it.
    """
    status, meta = pod["status"], pod["metadata"]
    words = [kind, status["phase"]]
    if status.get("reason"):
        words.append(f"reason={status['reason']}")
    boxes = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    words += [f"{box['name']}:{_state(box)}" for box in boxes]
    for condition in status.get("conditions", []):
        reason = condition.get("reason")
        told = f"{condition['type']}={condition['status']}{f':{reason}' if reason else ''}"
        if condition["type"] != "PodReadyToStartContainers":
            words.append(told)
    if "deletionGracePeriodSeconds" in meta:
        words.append(f"deleting({meta['deletionGracePeriodSeconds']})")
    return " ".join(sorted(words[:2]) + sorted(words[2:]))


def moments(changes: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, list[str]]:
    """The lives of all pods, without what is told twice."""
    lives: dict[str, list[str]] = {}
    for kind, pod in changes:
        told = lives.setdefault(pod["metadata"]["name"], [])
        word = life(kind, pod)
        if not told or told[-1] != word:
            told.append(word)
    return lives


def _state(box: dict[str, Any]) -> str:
    state = box["state"]
    if "terminated" in state:
        return f"{state['terminated']['reason']}({state['terminated']['exitCode']})"
    if "waiting" in state:
        return f"waiting({state['waiting'].get('reason')})"
    return "running"
