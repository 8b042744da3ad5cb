"""What a kubelet needs of whatever runs containers, hollow or real."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from .store import Object

__all__ = ["Ended", "LogQuery", "Mount", "Running", "Runtime", "Session", "StartRefused"]


class StartRefused(Exception):  # noqa: N818 - an answer, no failure
    """A container cannot be started."""

    def __init__(self, reason: str, message: str, *, retried: bool = True) -> None:
        super().__init__(message)
        #: as ``state.waiting.reason`` says it
        self.reason = reason
        self.message = message
        #: whether the kubelet tries again; else the container has ended with 128
        self.retried = retried


@attrs.frozen
class Ended:
    """How a container ended."""

    code: int
    oom: bool = False
    #: what it wrote as its termination message
    message: str = ""
    reason: str = ""


@attrs.frozen(kw_only=True)
class LogQuery:
    """Which part of a log is wanted."""

    follow: bool = False
    tail: int | None = None
    since: float | None = None
    timestamps: bool = False
    limit: int | None = None
    stream: str = "All"


@attrs.frozen
class Mount:
    """A folder or file of the host, in a container."""

    source: str
    target: str
    read_only: bool = False


class Session(Protocol):
    """A process that was started in a container, or the attachment to its first one."""

    async def read(self) -> tuple[int, bytes] | None:
        """What it wrote, as channel (1 or 2) and bytes; None when there is no more."""

    async def write(self, data: bytes) -> None:
        """Give it input."""

    async def end_input(self) -> None:
        """Close its input."""

    async def code(self) -> int:
        """Its exit code; called when there is nothing more to read."""

    async def resize(self, width: int, height: int) -> None:
        """Tell its terminal the size."""

    async def close(self) -> None:
        """Let go of it."""


class Running(Protocol):
    """A container that was started."""

    container_id: str
    image: str
    image_id: str

    async def wait(self) -> Ended:
        """Wait for its end."""

    async def stop(self, grace: float) -> None:
        """Ask it to end, and kill it when it has not ended after ``grace`` seconds."""

    async def kill(self) -> None:
        """Kill it."""

    def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        """What it wrote."""

    async def exec(self, argv: Sequence[str], *, stdin: bool, tty: bool) -> Session:
        """Start a process in it."""

    async def attach(self, *, stdin: bool) -> Session:
        """Hear its first process from now on, and talk to it."""

    async def dial(self, port: int) -> tuple[object, object]:
        """A connection (asyncio's reader and writer) to a port of its pod, as seen from inside."""


class Runtime(Protocol):
    """Runs pods' containers."""

    #: whether volumes are files
    real: bool
    #: where its files may be; set before ``open``
    folder: Path

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the API server must listen for pods to reach it."""

    async def open(self) -> None:
        """Get ready."""

    async def close(self) -> None:
        """End all that it runs, and clean up."""

    async def prepare(self, pod: Object) -> str:
        """Give a pod its network; the answer is its address."""

    async def start(
        self,
        pod: Object,
        container: Object,
        environ: Mapping[str, str],
        mounts: Sequence[Mount],
        attempt: int,
    ) -> Running:
        """Start a container, or refuse to."""

    async def discard(self, pod: Object) -> None:
        """Remove all that is left of a pod."""
