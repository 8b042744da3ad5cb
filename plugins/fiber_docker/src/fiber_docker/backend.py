"""The Docker backend: each job is a container."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fiber.abc import Backend
from fiber.backend_parts.containers import user_name
from fiber.backend_parts.feed import Feed
from fiber.backend_parts.watch import Watches
from fiber.exceptions import SubmitError, UnknownJobError
from fiber.model import (
    BackendContext,
    Capacity,
    Check,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Reach,
    ReachKind,
)
from fiber_docker import files, network, output
from fiber_docker.address import DESKTOP_HOST, Facts
from fiber_docker.client import Client, log_lines
from fiber_docker.config import DockerConfig, DockerTiming
from fiber_docker.container import ContainerContext
from fiber_docker.devices import Devices
from fiber_docker.endpoint import effective_config
from fiber_docker.images import Images
from fiber_docker.jobs import JobStarter, Terminator
from fiber_docker.orphans import master_identity, sweep
from fiber_docker.status import Inspector, created_at, from_list, job_of
from fiber_docker.watch import REMOVED_UNSEEN, Watch

if TYPE_CHECKING:
    from typing import BinaryIO


class DockerBackend(Backend):
    """Backend that runs jobs as containers of one engine.

    Args:
        context: settings and run; the engine is connected to at the first job.
    """

    name = "docker"

    def __init__(self, context: BackendContext) -> None:
        config = context.config if isinstance(context.config, DockerConfig) else DockerConfig()
        config = effective_config(config, os.environ)
        self._context = context
        self._config = config
        self._timing = timing = DockerTiming.at(context.timing.scale)
        self._client = Client(config, timing)
        self._inspector = Inspector(self._client)
        self._feed = Feed(self._ended)
        self._images = Images(self._client, config)
        self._devices = Devices(self._client, context.providers, config.python)
        self._starter = JobStarter(
            self.name,
            self._client,
            config,
            self._feed,
            self._images,
            self._devices,
            timing,
            context.timing.partial_line,
        )
        self._terminator = Terminator(self._client, timing.handler_check)
        self._watches = Watches(self._make_watch)
        self._owner = os.getpid()

    # -- jobs ---------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> Job:
        """Create a container; it is started while this returns."""
        if not spec.argv:
            msg = f"{spec.name} has no program to run: argv is empty"
            raise SubmitError(msg)
        context = self._container_context(spec)
        self._watches.wait_ready(spec.run_id)
        return self._starter.submit(spec, context)

    def events(self, run_id: str) -> Iterator[tuple[Job, JobStatus]]:
        """Changes of the containers of a run, also of those that other programs started."""
        events = self._feed.events(run_id)
        self._watches.wait_ready(run_id)
        return events

    def status(self, jobs: Sequence[Job]) -> Sequence[JobStatus]:
        """The present status of jobs, of any run."""
        found: dict[str, JobStatus | None] = {job.id: self._feed.status(job.id) for job in jobs}
        unsure = [job for job in jobs if (s := found[job.id]) is None or not s.state.is_terminal]
        if unsure:
            runs = {job.run_id for job in unsure}
            label = f"fiber.run={runs.pop()}" if len(runs) == 1 else "fiber.run"
            listed = {_name(item): item for item in self._client.containers(label)}
            until = time.monotonic() + self._timing.end_event
            for job in unsure:
                item = listed.get(job.id)
                if item is None:
                    if found[job.id] is None:
                        msg = f"there is no job {job.id} ({job.name}) on the Docker engine"
                        raise UnknownJobError(msg)
                    if not self._starter.is_starting(job.id):
                        # the event of its end is on its way
                        self._feed.wait_ended(job.id, max(0.0, until - time.monotonic()))
                        found[job.id] = self._feed.end(job.id) or REMOVED_UNSEEN
                    continue
                status = from_list(item) or self._inspector.status(item["Id"], item["Labels"])
                # an end that is known by now
                found[job.id] = self._feed.end(job.id) or status
        return [known for job in jobs if (known := found[job.id]) is not None]

    def terminate(self, job: Job, *, grace: float = 5.0) -> None:
        """Send SIGTERM, and SIGKILL if it still runs after ``grace`` seconds, rounded up."""
        if self._feed.end(job.id):
            return
        # what was not started has nothing to end in an orderly way
        if self._starter.cancel(job, signal.SIGTERM):
            return
        self._client.inspect(job.id)
        self._terminator.terminate(job.id, grace)

    def kill(self, job: Job) -> None:
        """SIGKILL to all processes of a container."""
        if not self._feed.end(job.id) and not self._starter.cancel(job, signal.SIGKILL):
            self._client.signal(job.id, signal.SIGKILL)

    def logs(self, job: Job, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a job wrote, without their newlines."""
        if follow:
            # the engine ends at once for a container that does not run yet
            self._feed.wait_placed([job.id], None)
        if self._is_unstarted(job):
            return iter(())
        # requested at once, so that an unknown job raises now; for `tail`, a long line counts once
        # for each piece that the engine keeps it in
        try:
            pieces = self._client.logs(job.id, tail=tail, follow=follow)
        except UnknownJobError:
            if self._feed.status(job.id) is None:
                raise
            # the container of a process of Fiber's is gone with it, and its last lines were kept
            return iter(self._feed.last_lines(job.id, tail))
        return log_lines(self._client, pieces)

    def exec(
        self,
        job: Job,
        argv: Sequence[str],
        *,
        stdin: BinaryIO | None = None,
        tty: bool = False,
    ) -> int:
        """Run a program in a job's container."""
        return output.execute(self._client, job.id, argv, stdin, tty=tty)

    def copy(self, src: str, dst: str) -> None:
        """Copy files to or from a volume."""
        files.copy(self._client, src, dst)

    def list(self, run_id: str | None = None) -> Sequence[Job]:
        """Containers of one run, or of all runs of this user; ended ones included."""
        label = f"fiber.run={run_id}" if run_id else f"fiber.owner={user_name()}"
        return [
            job_of(
                self.name,
                _name(item),
                item.get("Labels") or {},
                created_at(item.get("Created")),
            )
            for item in self._client.containers(label)
        ]

    def cleanup(self, run_id: str) -> None:
        """End the containers of a run and remove them."""
        is_ours = run_id == self._context.run_id
        unstarted = self._starter.cancel_unstarted() if is_ours else []
        names = [_name(item) for item in self._client.containers(f"fiber.run={run_id}")]
        self._starter.remove_all(names)
        self._starter.publish_cancelled(unstarted)

    # -- the platform -------------------------------------------------------------------------

    def prepare_image(self, context: str) -> str | None:
        """Build the image that a folder's Dockerfile describes, with progress on stderr."""
        return self._images.build(context)

    def capacity(self) -> Capacity:
        """CPUs and memory of the engine's machine, and free devices of probed kinds."""
        info = self._client.call("report its info", lambda api: api.info())
        return Capacity(
            cpus=float(info["NCPU"]),
            memory=int(info["MemTotal"]) >> 20,
            devices=self._devices.free_counts(),
        )

    def reach(self, job: Job) -> Reach:
        """Containers dial their master over the engine's network."""
        where = self._facts.network or "the engine's default network"
        return Reach(ReachKind.DIRECT, f"the container dials its parent over {where}")

    def check(self) -> Iterable[Check]:
        """Check the engine, with a container of its own."""
        from fiber_docker.checks import run_checks

        return run_checks(self._client, lambda: self._facts)

    def close(self) -> None:
        """Remove all containers of jobs that are not detached, and end the streams."""
        if os.getpid() != self._owner:
            return
        with contextlib.ExitStack() as stack:
            # each also if one before it fails
            stack.callback(self._client.close)
            stack.callback(self._feed.close)
            stack.callback(self._watches.close)
            stack.callback(self._terminator.close)
            stack.callback(self._starter.close)

    # -- private -------------------------------------------------------------------------------

    @functools.cached_property
    def _facts(self) -> Facts:
        return network.facts_of(self._client, self._config)

    @functools.cached_property
    def _swept(self) -> bool:
        """True: once a process, the containers of dead masters are removed."""
        sweep(self._client, user_name())
        return True

    def _container_context(self, spec: JobSpec) -> ContainerContext:
        facts = self._facts
        image = spec.image or facts.image
        if image is None:
            msg = (
                "no image is named for jobs to run in; set FIBER_IMAGE=NAME (or --image), and "
                "build one with Python and fiber where you have none: docker build -t NAME FOLDER"
            )
            raise SubmitError(msg)
        _ = self._swept
        hosts = {DESKTOP_HOST: "host-gateway"} if facts.desktop and not facts.own else {}
        return ContainerContext(
            image=image,
            network=self._config.network or facts.network,
            master=master_identity(),
            master_container=facts.container,
            owner=user_name(),
            hosts=hosts,
            can_forbid_privileges=not facts.snap,
            engine_socket=self._socket_for(spec),
            stop=self._timing.stop,
            orphan=self._timing.orphan,
        )

    def _socket_for(self, spec: JobSpec) -> str | None:
        """Path of the engine's socket on its machine, for jobs that share it; None for others."""
        shared = self._config.share_engine
        if shared == "none" or (shared == "programs" and spec.entry is not None):
            return None
        scheme, _, path = self._client.url.partition("://")
        return path if scheme == "unix" else None

    def _make_watch(self, run_id: str) -> Watch:
        return Watch(
            self._client,
            self.name,
            run_id,
            self._feed,
            self._inspector,
            self._starter,
            self._timing,
        )

    def _ended(self, job: Job) -> None:
        self._starter.ended(job)

    def _is_unstarted(self, job: Job) -> bool:
        known = self._feed.status(job.id)
        return (
            known is not None
            and known.state is JobState.PENDING
            and self._starter.is_submitted_here(job.id)
        )


def _name(item: Mapping[str, object]) -> str:
    names = item.get("Names")
    return str(names[0]).lstrip("/") if isinstance(names, (list, tuple)) and names else ""
