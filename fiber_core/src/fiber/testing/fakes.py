"""Backend, resource provider and plugin for tests; they pass the same kits as real ones."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fiber.abc import Backend, ResourceProvider
from fiber.exceptions import BackendUnavailableError, ResourceError
from fiber.hookspecs import hookimpl
from fiber.model import (
    BackendContext,
    BackendInfo,
    Capabilities,
    Capacity,
    Check,
    Device,
    Job,
    JobSpec,
    JobStatus,
    Reach,
    ReachKind,
)
from fiber.testing.fake_platform import FakePlatform

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["CAPABILITIES", "FakeBackend", "FakePlatform", "FakePlugin", "FakeProvider"]

#: capabilities of the fake backend
CAPABILITIES = Capabilities(
    logs=True,
    follow_logs=True,
    exec=True,
    devices=True,
    detached=True,
    fork=True,
    suspend=True,
    same_host=True,
)


class FakeBackend(Backend):
    """Backend on a :class:`FakePlatform`.

    Args:
        context: providers and run, as for any backend.
        platform: platform to run jobs on; a new one by default.
    """

    name = "fake"

    def __init__(
        self, context: BackendContext | None = None, platform: FakePlatform | None = None
    ) -> None:
        self._context = context if context is not None else BackendContext()
        self.platform = (
            platform if platform is not None else FakePlatform(timing=self._context.timing)
        )
        self._mine: list[Job] = []
        self._closed = threading.Event()

    def submit(self, spec: JobSpec) -> Job:
        """Start a job."""
        if self._closed.is_set():
            msg = "this fake backend is closed; make another one"
            raise BackendUnavailableError(msg)
        job = self.platform.submit(spec, self._context.providers)
        if not spec.detached:
            self._mine.append(job)
        return job

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Yield every change of the jobs of a run."""
        position: int | None = None
        while not self._closed.is_set():
            try:
                for event in self.platform.events(run_id, self._closed, position):
                    position, job, status = event
                    yield job, status
            except ConnectionError:
                # resumed where it broke, so that no event is lost or repeated
                continue

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """Return the jobs' statuses."""
        return self.platform.statuses(jobs)

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """SIGTERM, and SIGKILL after the grace."""
        self.platform.find(job).terminate(grace)

    def kill(self, job: Job) -> None:
        """SIGKILL."""
        self.platform.find(job).kill()

    def signal(self, job: Job, index: int, signum: int) -> None:
        """Send a signal to one process of a job."""
        self.platform.find(job).signal(index, signum)

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote."""
        return self.platform.find(job).lines(tail, follow)

    def exec(
        self,
        job: Job,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None = None,
        tty: bool = False,
    ) -> int:
        """Run a program on this host, as the jobs are on this host."""
        self.platform.find(job)
        if stdin is None:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
        else:
            done = subprocess.run(argv, input=stdin.read(), check=False)
        return done.returncode

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """List the jobs that exist."""
        return self.platform.jobs(run_id)

    def cleanup(self, run_id: str) -> None:
        """End the jobs of a run and forget them."""
        self.platform.end(self.platform.jobs(run_id), forget=True)

    def capacity(self) -> Capacity:
        """Return this host's CPUs, and the free devices."""
        devices = self.platform.free_devices()
        return Capacity(cpus=float(os.cpu_count() or 1), devices=devices)

    def reach(self, job: Job) -> Reach:
        """Return DIRECT."""
        self.platform.find(job)
        return Reach(ReachKind.DIRECT, "both are processes of this host")

    def check(self) -> Iterable[Check]:
        """Check whether the platform answers."""
        if self.platform.available:
            return [Check(name="fake platform", ok=True, detail="it answers")]
        fix = "set the platform's 'available' to True"
        return [Check(name="fake platform", ok=False, detail="it does not answer", fix=fix)]

    def close(self) -> None:
        """End the jobs that are not detached, and the iterators of events."""
        self._closed.set()
        self.platform.end(self._mine, forget=False)
        self.platform.wake()


class FakeProvider(ResourceProvider):
    """Provider of devices that do nothing; a process's are in ``FAKE_VISIBLE_DEVICES``.

    Args:
        count: number of devices that the probe finds.
        kind: name of their kind.
    """

    device_class = "example.com/fake"

    def __init__(self, count: int = 2, kind: str = "fake") -> None:
        self.count = count
        self.kind = kind

    def probe(self) -> Sequence[str]:
        """Return the argv of a Python that prints the devices as JSON."""
        code = "import json, sys; print(json.dumps([f'F-{n}' for n in range(int(sys.argv[1]))]))"
        return ("{python}", "-I", "-S", "-c", code, str(self.count))

    def parse(self, output: str) -> Sequence[Device]:
        """Parse the output of the probe."""
        try:
            names = json.loads(output)
        except ValueError:
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            msg = f"no list of fake devices, but {output.strip()[:200]!r}"
            raise ResourceError(msg)
        return tuple(
            Device(kind=self.kind, id=name, index=index, name="Fake")
            for index, name in enumerate(names)
        )

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """Return a variable with the ids of the devices."""
        return {"FAKE_VISIBLE_DEVICES": ",".join(device.id for device in devices)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeProvider) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.kind, self.count))


class FakePlugin:
    """Plugin with the fake backend and the fake provider: ``load_plugins(extra=[FakePlugin()])``.

    Args:
        platform: platform of all its backends; by default each backend has a platform of its own.
        default: True to use this backend where none was chosen.
    """

    def __init__(self, platform: FakePlatform | None = None, *, default: bool = False) -> None:
        self._platform = platform
        self._default = default

    @hookimpl
    def fiber_backends(self) -> Sequence[BackendInfo]:
        """Offer the fake backend."""
        return [
            BackendInfo(
                name="fake",
                summary="jobs in memory, for tests",
                capabilities=CAPABILITIES,
                default=self._default,
                load=lambda context: FakeBackend(context, self._platform),
            )
        ]

    @hookimpl
    def fiber_resource_providers(self) -> Sequence[ResourceProvider]:
        """Offer the fake devices."""
        return [FakeProvider()]
