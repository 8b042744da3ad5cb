"""The part of a process's runtime that starting jobs needs, as a protocol.

:class:`fiber._runtime.runtime.Runtime` is above this package and provides it, so that nothing here
imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fiber._agent.instructions import Instructions
    from fiber._base.threads import Reactor
    from fiber._config.settings import Config
    from fiber._launch.child import Control
    from fiber._plugins.manager import Plugins
    from fiber._wire.client import Client
    from fiber._wire.endpoint import Endpoint
    from fiber._wire.handshake import Credentials, Hello
    from fiber.abc import Backend
    from fiber.exceptions import BackendError
    from fiber.model.job import Job, JobSpec, JobStatus
    from fiber.model.plugin import BackendInfo
    from fiber.model.timing import Timing


class JobObserver(Protocol):
    """What follows the statuses of jobs."""

    def observed(self, job: Job, status: JobStatus) -> None: ...


class LaunchContext(Protocol):
    """Runtime of a process that starts others."""

    config: Config
    instructions: Instructions | None
    ident: str
    closing: bool

    @property
    def run_id(self) -> str: ...

    @property
    def is_master(self) -> bool: ...

    @property
    def credentials(self) -> Credentials: ...

    @property
    def directory(self) -> Path: ...

    @property
    def plugins(self) -> Plugins: ...

    @property
    def info(self) -> BackendInfo: ...

    @property
    def backend(self) -> Backend: ...

    @property
    def hello(self) -> Hello: ...

    @property
    def reactor(self) -> Reactor: ...

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def launcher(self) -> Control: ...
    @property
    def router(self) -> JobObserver: ...
    @property
    def timing(self) -> Timing: ...

    @property
    def lease(self) -> float: ...

    def urls(self) -> list[str]: ...

    def client(self, url: str) -> Client: ...

    def submit(self, spec: JobSpec) -> Job: ...

    @property
    def takes_many(self) -> bool: ...

    def submit_many(self, specs: Sequence[JobSpec]) -> Sequence[Job | BackendError]: ...

    def notify(self, hook: str, **facts: Any) -> None: ...
