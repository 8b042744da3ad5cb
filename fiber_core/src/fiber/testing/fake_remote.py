"""A backend whose jobs know nothing of their submitter: programs in a folder and environment of their own.

It stands for engines and hosts in tests of the core: jobs are processes of this machine, and reach
their parent by TLS alone. Use it by an entry point ``far = fiber.testing.fake_remote`` in the group
``fiber``, and ``FIBER_BACKEND=far FIBER_FAR_FOLDER=…``; ``nearby`` is the same where connections tell
of an end themselves, as on one engine.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs

from fiber.abc import Backend
from fiber.exceptions import BackendUnavailableError, CapabilityError
from fiber.hookspecs import hookimpl
from fiber.model import (
    BackendContext,
    BackendInfo,
    Capabilities,
    Job,
    JobSpec,
    ListenAddress,
    Peers,
    Reach,
    ReachKind,
)
from fiber.testing.fake_platform import FakePlatform
from fiber.testing.fakes import FakeBackend

__all__ = ["AWAY", "REMOTE_CAPABILITIES", "FakeRemoteBackend", "FarConfig", "RemotePlatform"]

#: while a file of this name is in its folder, the platform cannot be asked by any process
AWAY = "platform-is-away"
#: what works on the remote fake
REMOTE_CAPABILITIES = Capabilities(
    logs=True, follow_logs=True, detached=True, suspend=True, streams=True, drain=True
)


@attrs.frozen(kw_only=True)
class FarConfig:
    """Settings of the remote fake."""

    #: working directory and home of jobs; nothing of the submitter's is in it
    folder: Path = attrs.field(metadata={"help": "working directory and home of jobs"})
    #: the interpreter of that host
    python: str = attrs.field(default=sys.executable, metadata={"help": "the host's Python"})
    #: folders from which that Python imports besides its own
    path: str = attrs.field(default="", metadata={"help": "the host's PYTHONPATH"})
    #: True where nobody there can dial, nor be dialled: streams are opened into jobs
    streams: bool = attrs.field(default=False, metadata={"help": "jobs are reached by streams"})
    #: a port on the job's side that is forwarded to the parent's
    forwarded: str = attrs.field(default="", metadata={"help": "host:port where jobs dial"})
    #: seconds between SIGTERM and SIGKILL of a job that has to go; not told where negative
    grace: float = attrs.field(default=10.0, metadata={"help": "seconds that a job has to go"})


class RemotePlatform(FakePlatform):
    """Runs programs as another host would.

    Args:
        config: what that host is like.
    """

    name = "far"

    def __init__(self, config: FarConfig) -> None:
        super().__init__()
        self._config = config
        self._landings: dict[str, int] = {}
        self._choosing = threading.Lock()

    def environment(self, spec: JobSpec) -> dict[str, str]:
        """What this host has, and what the spec says."""
        config = self._config
        home = str(config.folder)
        own = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
        if spec.entry is not None and config.grace >= 0:
            own["FIBER_GRACE"] = str(config.grace)
        if config.path:
            own["PYTHONPATH"] = config.path
        if config.forwarded:
            own["FIBER_REACH"] = config.forwarded
        if config.streams:
            own["FIBER_REACH"] = f"streams:127.0.0.1:{self._landing(spec)}"
        return {**own, **spec.env}

    def ask(self) -> None:
        """Count a request; fail where the platform cannot be asked, or its folder has the file."""
        self.available = not (self._config.folder / AWAY).exists()
        super().ask()

    def open_stream(self, job: Job) -> socket.socket:
        """A stream into a job.

        Raises:
            OSError: nobody listens there yet, or any more.
        """
        spec = self.find(job).spec
        made = socket.create_connection(("127.0.0.1", self._landing(spec)), timeout=5)
        if made.getsockname() == made.getpeername():
            # where nobody listens, the system may connect a port to itself
            made.close()
            raise ConnectionRefusedError
        return made

    def _landing(self, spec: JobSpec) -> int:
        with self._choosing:
            key = spec.ident or spec.name
            if key not in self._landings:
                with socket.socket() as probe:
                    probe.setblocking(True)
                    probe.bind(("127.0.0.1", 0))
                    self._landings[key] = probe.getsockname()[1]
            return self._landings[key]

    def program(self, spec: JobSpec, index: int) -> Sequence[str]:
        """The argv; the core's jobs run in this host's Python."""
        return spec.argv if spec.entry is None else (self._config.python, *spec.argv[1:])

    def folder(self, spec: JobSpec) -> str | None:
        """Its own, where the spec names none."""
        return spec.cwd or str(self._config.folder)


class FakeRemoteBackend(FakeBackend):
    """The fake backend without what only one host has."""

    name = "far"

    # not offered; signals go over the connection
    exec = Backend.exec
    signal = Backend.signal
    submit_group = Backend.submit_group

    def submit(self, spec: JobSpec) -> Job:
        """Start a job of one process, without devices."""
        if spec.processes > 1:
            raise CapabilityError(self.name, "fork", "a job of several processes")
        if spec.resources.devices:
            raise CapabilityError(self.name, "devices", "a job with devices")
        return super().submit(spec)

    def reach(self, job: Job) -> Reach:
        """Directly, or by what the platform forwards."""
        self.platform.find(job)
        config = self._context.config
        if isinstance(config, FarConfig) and config.streams:
            return Reach(ReachKind.REVERSED, "its connections are carried over streams")
        if isinstance(config, FarConfig) and config.forwarded:
            return Reach(ReachKind.REVERSED, f"{config.forwarded} is forwarded to the parent")
        return Reach(ReachKind.DIRECT, "by TLS over loopback")

    def open_stream(self, job: Job) -> socket.socket:
        """A stream to the landing of a job."""
        platform = self.platform
        if not isinstance(platform, RemotePlatform) or not platform.available:
            msg = "the remote fake does not answer"
            raise BackendUnavailableError(msg)
        try:
            return platform.open_stream(job)
        except OSError as error:
            msg = f"no stream into {job.name} can be opened: {error}"
            raise BackendUnavailableError(msg) from error


class _NearbyBackend(FakeRemoteBackend):
    name = "nearby"


@hookimpl
def fiber_backends() -> Sequence[BackendInfo]:
    """The remote fake in two distances."""
    return [
        BackendInfo(
            name="far",
            summary="programs that see nothing of their submitter, for tests",
            capabilities=REMOTE_CAPABILITIES,
            config=FarConfig,
            lease=30.0,
            load=lambda context: FakeRemoteBackend(context, RemotePlatform(_config(context))),
        ),
        BackendInfo(
            name="nearby",
            summary="the same on one engine, for tests",
            capabilities=REMOTE_CAPABILITIES,
            config=FarConfig,
            lease=3.0,
            near=True,
            load=lambda context: _NearbyBackend(context, RemotePlatform(_config(context))),
        ),
    ]


def _config(context: BackendContext) -> FarConfig:
    return context.config if isinstance(context.config, FarConfig) else FarConfig(folder=Path("/"))


@hookimpl
def fiber_listen_address(backend: str, peers: Peers) -> ListenAddress | None:
    """TLS over loopback."""
    if backend not in ("far", "nearby"):
        return None
    routed = isinstance(peers.config, FarConfig) and peers.config.streams
    return ListenAddress(bind_url="tls+tcp://127.0.0.1:0", routed=routed)
