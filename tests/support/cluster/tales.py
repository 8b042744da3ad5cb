"""What a kubelet tells of a container: events, and the states that a pod's status shows."""

from __future__ import annotations

from typing import Protocol

from .podstatus import Box
from .runtime import Ended, StartRefused
from .store import Object, now

__all__ = ["backs_off", "created", "ended", "never_was", "pull_backs_off", "refused", "waits"]

_IMAGE_WORDS = ("ErrImagePull", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName")


class Tell(Protocol):
    """Records an event of a pod."""

    def __call__(
        self, reason: str, message: str, box: Box | None = None, *, warning: bool = False
    ) -> None: ...


def created(tell: Tell, box: Box) -> None:
    """A container was made."""
    image = box.spec["image"]
    text = f'Container image "{image}" already present on machine and can be accessed by the pod'
    tell("Pulled", text, box)
    tell("Created", "Container created", box)


def waits(tell: Tell, box: Box, why: StartRefused) -> None:
    """A container cannot be started yet."""
    box.state = {"waiting": {"reason": why.reason, "message": why.message}}
    if why.reason == "ErrImageNeverPull":
        tell(why.reason, why.message, box, warning=True)
    elif why.reason == "ErrImagePull":
        image = box.spec["image"]
        tell("Pulling", f'Pulling image "{image}"', box)
        tell("Failed", f'Failed to pull image "{image}": {why.message}', box, warning=True)
    elif why.reason == "InvalidImageName":
        tell("InspectFailed", why.message, box, warning=True)
    word = why.reason if why.reason in _IMAGE_WORDS else why.message
    tell("Failed", f"Error: {word}", box, warning=True)


def pull_backs_off(tell: Tell, box: Box, why: StartRefused) -> None:
    """An image is asked for again after a while."""
    image = box.spec["image"]
    text = f'Back-off pulling image "{image}": ErrImagePull: {why.message}'
    box.state = {"waiting": {"reason": "ImagePullBackOff", "message": text}}
    tell("BackOff", f'Back-off pulling image "{image}"', box)
    tell("Failed", "Error: ImagePullBackOff", box, warning=True)


def backs_off(tell: Tell, pod: Object, box: Box, wait: float) -> None:
    """A container that ends again and again is started again after a while."""
    meta = pod["metadata"]
    which = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
    message = f"back-off {wait:g}s restarting failed container={box.name} pod={which}"
    box.last_state = box.state
    box.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    text = f"Back-off restarting failed container {box.name} in pod {which}"
    tell("BackOff", text, box, warning=True)


def refused(box: Box, why: StartRefused) -> None:
    """A container could not be started, and will not be."""
    box.container_id = box.container_id or f"containerd://{'0' * 64}"
    box.state = {
        "terminated": {
            "exitCode": 128,
            "reason": why.reason,
            "message": why.message,
            "startedAt": "1970-01-01T00:00:00Z",
            "finishedAt": now(),
            "containerID": box.container_id,
        }
    }


def ended(box: Box, how: Ended) -> None:
    """A container that ran has ended."""
    if not box.running:
        return
    reason = "OOMKilled" if how.oom else "Completed" if how.code == 0 else "Error"
    told: Object = {"exitCode": how.code, "reason": how.reason or reason}
    if how.message:
        told["message"] = how.message
    told |= {
        "startedAt": box.state["running"]["startedAt"],
        "finishedAt": now(),
        "containerID": box.container_id,
    }
    box.state = {"terminated": told}


def never_was(box: Box) -> None:
    """A pod ends before one of its containers was there."""
    box.state = {
        "terminated": {
            "exitCode": 137,
            "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated",
            "startedAt": None,
            "finishedAt": None,
        }
    }
