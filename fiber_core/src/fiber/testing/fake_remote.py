"""Fake backend for remote jobs: programs of this host with an environment and a folder of their own.

It stands for engines and hosts in tests of the core: its jobs reach their parent by TLS alone. Use
it by an entry point ``far = fiber.testing.fake_remote`` in the group ``fiber``, and
``FIBER_BACKEND=far FIBER_FAR_FOLDER=…``; ``nearby`` is the same, but declares that connections end
with the processes at their ends, as on one engine.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs

from fiber.abc import Backend
from fiber.exceptions import BackendError, BackendUnavailableError
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
    Timing,
)
from fiber.testing.fake_platform import FakePlatform
from fiber.testing.fakes import FakeBackend

#: name of a file in its folder that makes the platform unavailable to all processes
AWAY = "platform-is-away"
#: capabilities of the remote fake
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
    #: True where jobs can neither dial nor be dialed: streams are opened into them
    streams: bool = attrs.field(default=False, metadata={"help": "jobs are reached by streams"})
    #: a port on the job's side that is forwarded to the parent's
    forwarded: str = attrs.field(default="", metadata={"help": "host:port where jobs dial"})
    #: seconds between SIGTERM and SIGKILL of a job that has to go; not told where negative
    grace: float = attrs.field(default=10.0, metadata={"help": "seconds that a job has to go"})


class RemotePlatform(FakePlatform):
    """Platform that runs programs as another host would.

    Args:
        config: settings of that host.
        timing: durations that it waits for.
    """

    name = "far"

    def __init__(self, config: FarConfig, timing: Timing = Timing()) -> None:
        super().__init__(timing=timing)
        self._config = config
        self._listen_ports: dict[str, int] = {}
        self._choosing = threading.Lock()

    def environment(self, spec: JobSpec) -> dict[str, str]:
        """Return the host's variables and those of the spec."""
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
            own["FIBER_REACH"] = f"streams:127.0.0.1:{self._listen_port(spec)}"
        return {**own, **spec.env}

    def ask(self) -> None:
        """Count a request; fail where the platform cannot be asked, or its folder has the file."""
        self.available = not (self._config.folder / AWAY).exists()
        super().ask()

    def open_stream(self, job: Job) -> socket.socket:
        """Open a stream into a job.

        Raises:
            OSError: the job does not listen, yet or any more.
        """
        spec = self.find(job).spec
        made = socket.create_connection(
            ("127.0.0.1", self._listen_port(spec)), self.timing.stream_answer
        )
        with contextlib.ExitStack() as failed:
            # where it was reset already, it has no peer any more
            failed.callback(made.close)
            if made.getsockname() == made.getpeername():
                # without a listener, the system may connect a port to itself
                raise ConnectionRefusedError
            failed.pop_all()
        return made

    def _listen_port(self, spec: JobSpec) -> int:
        with self._choosing:
            key = spec.ident or spec.name
            if key not in self._listen_ports:
                with socket.socket() as probe:
                    probe.setblocking(True)
                    probe.bind(("127.0.0.1", 0))
                    self._listen_ports[key] = probe.getsockname()[1]
            return self._listen_ports[key]

    def program(self, spec: JobSpec, index: int) -> Sequence[str]:
        """Return the argv; the core's jobs run in the host's Python."""
        return spec.argv if spec.entry is None else (self._config.python, *spec.argv[1:])

    def folder(self, spec: JobSpec) -> str | None:
        """Return the working directory: the host's own, where the spec names none."""
        return spec.cwd or str(self._config.folder)


class FakeRemoteBackend(FakeBackend):
    """Fake backend without features that need one host."""

    name = "far"

    # not offered; signals go over the connection
    exec = Backend.exec
    signal = Backend.signal

    def submit_many(self, specs: Sequence[JobSpec]) -> Sequence[Job | BackendError]:
        """Start jobs; overridden, so that pools and rings make one call, as to a batch system."""
        return super().submit_many(specs)

    def reach(self, job: Job) -> Reach:
        """Return DIRECT, or REVERSED where the settings have streams or a forwarded port."""
        self.platform.find(job)
        config = self._context.config
        if isinstance(config, FarConfig) and config.streams:
            return Reach(ReachKind.REVERSED, "its connections are carried over streams")
        if isinstance(config, FarConfig) and config.forwarded:
            return Reach(ReachKind.REVERSED, f"{config.forwarded} is forwarded to the parent")
        return Reach(ReachKind.DIRECT, "by TLS over loopback")

    def open_stream(self, job: Job) -> socket.socket:
        """Open a stream into a job."""
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
    """Offer the remote fake twice: ``far``, and ``nearby``, where connections tell of ends."""
    return [
        BackendInfo(
            name="far",
            summary="programs that see nothing of their submitter, for tests",
            capabilities=REMOTE_CAPABILITIES,
            config=FarConfig,
            lease=30.0,
            load=lambda context: FakeRemoteBackend(context, _platform(context)),
        ),
        BackendInfo(
            name="nearby",
            summary="the same on one engine, for tests",
            capabilities=REMOTE_CAPABILITIES,
            config=FarConfig,
            lease=3.0,
            near=True,
            load=lambda context: _NearbyBackend(context, _platform(context)),
        ),
    ]


def _platform(context: BackendContext) -> RemotePlatform:
    config = (
        context.config if isinstance(context.config, FarConfig) else FarConfig(folder=Path("/"))
    )
    return RemotePlatform(config, context.timing)


@hookimpl
def fiber_listen_address(backend: str, peers: Peers) -> ListenAddress | None:
    """Listen with TLS on loopback."""
    if backend not in ("far", "nearby"):
        return None
    routed = isinstance(peers.config, FarConfig) and peers.config.streams
    return ListenAddress(bind_url="tls+tcp://127.0.0.1:0", routed=routed)
