"""Supervisors of one backend: that of the run, and one for each detached job; and the devices of this host.

Devices are probed once a kind, when a job first asks for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fiber._agent import rundir
from fiber._agent.instructions import PRELOAD
from fiber._agent.supervisor import claim_channel, release_channel
from fiber._agent.supervisor.client import (
    SupervisorClient,
    SupervisorGoneError,
    UnknownDevicesError,
)
from fiber._agent.supervisor.messages import Accepted, SupervisorOptions
from fiber._agent.supervisor.preload import is_fibers, was_requested
from fiber._agent.supervisor.start import start_supervisor
from fiber._base.log import lazy_logger
from fiber.abc import ResourceProvider
from fiber.backend_parts.liveness import Owner, owner_of
from fiber.exceptions import BackendUnavailableError
from fiber.model import BackendContext, Device, JobSpec, JobStatus
from fiber_local.config import LocalConfig

if TYPE_CHECKING:
    import socket
    import subprocess

__all__ = ["HostDevices", "Supervisors", "mark_detached"]


class HostDevices:
    """Probes resource providers and remembers their devices; thread-safe.

    Args:
        providers: installed resource providers, by kind.
    """

    def __init__(self, providers: Mapping[str, ResourceProvider]) -> None:
        self._providers = providers
        self._found: dict[str, tuple[Device, ...]] = {}
        self._lock = threading.Lock()

    def known(self) -> Mapping[str, int]:
        """Return the number of devices of each kind that was probed."""
        with self._lock:
            return {kind: len(devices) for kind, devices in self._found.items()}

    def find(self, kind: str) -> tuple[Device, ...]:
        """Return all devices of a kind; probe them first where needed.

        Raises:
            ResourceError: no provider of that kind is installed, or its probe failed.
        """
        from fiber._agent.resources import probe, provider_of

        provider = provider_of(kind, self._providers)
        with self._lock:
            if kind not in self._found:
                self._found[kind] = probe(provider)
            return self._found[kind]

    def offer(self, kinds: Iterable[str]) -> tuple[tuple[Device, ...], Mapping[str, bytes]]:
        """Return all devices of some kinds, and their providers pickled by cloudpickle.

        Raises:
            ResourceError: as :meth:`find`.
        """
        from cloudpickle import cloudpickle

        chosen = tuple(kinds)
        devices = tuple(device for kind in chosen for device in self.find(kind))
        return devices, {kind: cloudpickle.dumps(self._providers[kind]) for kind in chosen}


log = lazy_logger()

#: supervisors that may be lost during one submission
_ATTEMPTS = 3


class Supervisors:
    """Starts supervisors when needed, again when lost, and ends them at close; thread-safe.

    Args:
        context: the backend's.
        config: its settings.
        host: name of this host.
        devices: devices of this host.
        on_status: called with the id and status of each job that changed.
    """

    def __init__(
        self,
        context: BackendContext,
        config: LocalConfig,
        host: str,
        devices: HostDevices,
        on_status: Callable[[str, JobStatus], None],
    ) -> None:
        self._context = context
        self._idle_exit = config.idle_exit
        # as of any peer on this host: a busy machine keeps one silent for longer than a lease, and
        # the end of its process or channel is noticed at once
        self._silence = max(context.lease or 0.0, context.timing.local_silence)
        self._host = host
        self._devices = devices
        self._on_status = on_status
        # workers are sent the settings
        self._essential: tuple[str, ...] = (*PRELOAD, LocalConfig.__module__)
        self._named = config.preload
        self._preload = config.preload
        self._excluded: set[str] = set()
        self._troubles = 0
        self._lock = threading.Lock()
        self._client: SupervisorClient | None = None
        self._former: list[SupervisorClient] = []
        self._detached: list[SupervisorClient] = []
        self._by_job: dict[str, SupervisorClient] = {}
        self._closed = False

    @property
    def directory(self) -> str:
        """The run directory.

        Raises:
            BackendUnavailableError: the backend was made without a run.
        """
        directory = self._context.run_directory
        if directory is None:
            msg = "this backend was made to look at jobs only; it has no run to start them in"
            raise BackendUnavailableError(msg)
        return directory

    def start(self) -> None:
        """Start the run's supervisor unless it runs.

        Raises:
            BackendUnavailableError: it could not be started.
        """
        self._connect()

    def submit(
        self, spec: JobSpec, on_accepted: Callable[[Accepted], None], *, cwd: str
    ) -> Accepted:
        """Start a job on the run's supervisor.

        Raises:
            SubmitError: it cannot be started, with the system's words.
            ResourceError: this host will never have the devices.
            BackendUnavailableError: no supervisor could be started, or kept.
        """
        attempt = 0
        while True:
            client = self._connect()
            try:
                return self._submit(client, spec, on_accepted, cwd)
            except SupervisorGoneError:
                # it ended idle or for another one, which imports less, or was killed; a job that it had begun has
                # died with it
                attempt += not client.is_retired
                if attempt == _ATTEMPTS:
                    raise

    def submit_detached(
        self, spec: JobSpec, on_accepted: Callable[[Accepted], None], *, cwd: str
    ) -> Accepted:
        """Start a job that outlives this process, on a supervisor of its own.

        Args:
            spec: the job.
            on_accepted: as in :meth:`submit`.
            cwd: likewise.
        """
        self._check_open()
        directory = self.directory
        mark_detached(Path(directory))
        channel, process = start_supervisor(
            SupervisorOptions(
                run_id=spec.run_id,
                run_directory=directory,
                master=None,
                host=self._host,
                essential=self._essential if spec.entry else (),
                idle_exit=0.0,
                detached=True,
                time_scale=self._context.timing.scale,
            )
        )
        # the started process forks the supervisor and ends, so that it is no child of this one
        process.wait()
        client = self._client_of(channel)
        with self._lock:
            self._detached = [c for c in self._detached if c.is_running]
            self._detached.append(client)
        return self._submit(client, spec, on_accepted, cwd)

    def _submit(
        self,
        client: SupervisorClient,
        spec: JobSpec,
        on_accepted: Callable[[Accepted], None],
        cwd: str,
    ) -> Accepted:
        def accepted(reply: Accepted) -> None:
            self._by_job[reply.job_id] = client
            on_accepted(reply)

        environ = dict(os.environ)
        while True:
            try:
                return client.submit(spec, environ=environ, cwd=cwd, on_accepted=accepted)
            except UnknownDevicesError as unknown:
                # each supervisor learns devices when a job first asks for them
                devices, providers = self._devices.offer(unknown.kinds)
                client.offer(devices, providers)

    def call(self, job_id: str, action: Callable[[SupervisorClient], None]) -> None:
        """Call a function with the client of a job's supervisor; nothing where that has ended."""
        client = self._by_job.get(job_id)
        if client is not None:
            try:
                action(client)
            except SupervisorGoneError:
                return

    def preload(self, modules: tuple[str, ...]) -> None:
        """Import modules in the running supervisor, and in later ones."""
        with self._lock:
            known = {*self._essential, *self._preload, *self._excluded}
            new = tuple(name for name in modules if name not in known)
            self._essential += tuple(name for name in new if is_fibers(name))
            self._preload += tuple(name for name in new if not is_fibers(name))
            client = self._client
        if client is not None and client.takes_jobs and new:
            with contextlib.suppress(SupervisorGoneError):
                self._tell_failures(client.preload(new))

    def end(self) -> None:
        """End the supervisors with all their jobs; another one may be started afterwards."""
        with self._lock:
            clients = [*self._former, *([] if self._client is None else [self._client])]
            self._former, self._client = [], None
        for client in clients:
            client.close()

    def close(self) -> Sequence[str]:
        """End the supervisors for good, except those of detached jobs; return these jobs' ids.

        Idempotent.
        """
        with self._lock:
            self._closed = True
            detached, self._detached = self._detached, []
        self.end()
        for client in detached:
            client.detach()
        return [job_id for job_id, client in self._by_job.items() if client in detached]

    def _connect(self) -> SupervisorClient:
        with self._lock:
            self._check_open()
            if self._client is not None and not self._client.takes_jobs:
                self._former = [c for c in self._former if c.is_running]
                self._former.append(self._client)
                self._client = None
            if self._client is None:
                self._client = self._claim_inherited() or self._start()
            return self._client

    def _check_open(self) -> None:
        if self._closed:
            msg = "the local backend was closed; make another one to start jobs"
            raise BackendUnavailableError(msg)

    def _claim_inherited(self) -> SupervisorClient | None:
        channel = claim_channel(self.directory)
        return None if channel is None else self._client_of(channel, on_end=release_channel)

    def _start(self) -> SupervisorClient:
        directory = self.directory
        owner = owner_of(directory)
        options = SupervisorOptions(
            run_id=self._context.run_id or "",
            run_directory=directory,
            master=os.getpid(),
            host=self._host,
            argv=tuple(map(str, sys.argv)),
            essential=self._essential,
            preload=self._preload,
            environ=dict(os.environ),
            idle_exit=self._idle_exit,
            # a process that is not the run's owner must not remove the directory
            remove_directory=owner in {None, Owner.current()},
            time_scale=self._context.timing.scale,
        )
        channel, process = start_supervisor(options)
        return self._client_of(channel, process)

    def _client_of(
        self,
        channel: socket.socket,
        process: subprocess.Popen[bytes] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> SupervisorClient:
        """Return the client of a supervisor; ``on_end`` is called once that has ended."""
        result = "its jobs have ended with it"

        def retired(modules: tuple[str, ...]) -> None:
            if not modules:
                # the next one imports what the program has imported since
                return
            excluded = self._exclude(modules)
            tell = log.warning if any(map(self._is_named, excluded)) else log.debug
            tell(
                "fiber: each process imports %s itself, as the import of %s starts threads or processes, opens connections, "
                "sets up logging or fails",
                ", ".join(excluded),
                ", ".join(modules),
            )

        def stuck(module: str) -> None:
            nonlocal result
            # to try what may import it would take minutes each time
            names = ", ".join(self._exclude((module,), least=2))
            result += f", and each process imports by itself from now on: {names}"

        def ended(words: str) -> None:
            on_end()
            if words and not self._closed:
                log.warning("fiber: %s; %s", words, result)

        return SupervisorClient(
            channel,
            on_status=self._on_job_status,
            on_notice=_tell,
            on_end=ended,
            on_failures=self._tell_failures,
            on_stuck=stuck,
            on_retired=retired,
            process=process,
            silence=self._silence,
            timing=self._context.timing,
        )

    def _tell_failures(self, failures: Mapping[str, str]) -> None:
        for module, words in failures.items():
            # others may need what the program does before it imports them, and each process does it too
            tell = log.warning if self._is_named(module) else log.debug
            tell("fiber: the supervisor cannot preload %s: %s", module, words)

    def _is_named(self, module: str) -> bool:
        return module in self._named or was_requested(module)

    def _exclude(self, modules: Sequence[str], *, least: int = 1) -> Sequence[str]:
        """Have later supervisors not import modules that make trouble; returns all that they do not import any more.

        Those are the modules alone at first. If that does not help, others import them: what was imported later goes
        as well, first without what the user has named, then with that.
        """
        with self._lock:
            self._troubles = max(self._troubles + 1, least)
            found = [index for index, name in enumerate(self._preload) if name in modules]
            later = self._preload[min(found, default=len(self._preload)) :]
            excluded = [
                *modules,
                *(
                    name
                    for name in later
                    if name not in modules and self._troubles > (2 if self._is_named(name) else 1)
                ),
            ]
            self._excluded.update(excluded)
            self._preload = tuple(name for name in self._preload if name not in self._excluded)
            return excluded

    def _on_job_status(self, job_id: str, status: JobStatus) -> None:
        if status.state.is_terminal:
            self._by_job.pop(job_id, None)
        self._on_status(job_id, status)


def _tell(words: str) -> None:
    # the method itself would be looked up, and logging imported, before there is anything to tell
    log.warning("fiber: %s", words)


def mark_detached(directory: Path) -> None:
    """Mark a run directory as detached: logs and journal are kept when its master ends."""
    description = rundir.describe(directory)
    if description is not None and not description.get("detached"):
        description["detached"] = True
        new = directory / "run.json.new"
        new.write_text(json.dumps(description))
        new.replace(directory / "run.json")
