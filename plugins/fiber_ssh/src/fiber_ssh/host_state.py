"""One host as the backend uses it: its connection, its room, and what is sent to it in order."""

from __future__ import annotations

import importlib.metadata
import logging
import queue
import threading
from collections.abc import Callable, Mapping

from fiber._agent.resources.allocator import Allocator
from fiber._agent.resources.probe import check_devices, probe_argv
from fiber.abc import ResourceProvider
from fiber.exceptions import BackendUnavailableError, FiberError, ResourceError
from fiber.model import Device, JobSpec, ResourceRequest
from fiber_ssh.config import SshConfig
from fiber_ssh.files import FileSender
from fiber_ssh.fitness import unfit
from fiber_ssh.hosts import Host
from fiber_ssh.link import HostLink
from fiber_ssh.placement import Room, slots_of
from fiber_ssh.shell import run
from fiber_ssh.streams import Streams

__all__ = ["Station"]

log = logging.getLogger("fiber")

_PROBE = 30.0


class Station:
    """What is known of a host and held of it; its owner's lock guards the room.

    Args:
        link: the connection.
        config: the settings.
        providers: installed resource providers by kind.
    """

    def __init__(
        self, link: HostLink, config: SshConfig, providers: Mapping[str, ResourceProvider]
    ) -> None:
        self.link = link
        self.streams = Streams(link.host.name, config.connect_timeout)
        self._config = config
        self._providers = providers
        self._allocator = Allocator(())
        self._counts: dict[str, int] = {}
        self._sender = FileSender(config, link.host)
        #: why processes of this program cannot run there, with the fix; empty where they can
        self.unfit = ""
        self._held: dict[str, float] = {}
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def host(self) -> Host:
        """The host."""
        return self.link.host

    def came_up(self) -> None:
        """The connection was made, for the first time or again."""
        about = self.link.about
        if about is not None:
            mine = importlib.metadata.version("fiber-core")
            self.unfit = unfit(about, self.host.name, mine)
            if self.unfit:
                log.warning("%s", self.unfit)

    def files(self, spec: JobSpec) -> str | None:
        """Have the host hold the files that are to be sent; returns their folder there."""
        about = self.link.about
        if not self._config.send or about is None:
            return None
        return self._sender.send(self.link.transport, about, spec.run_id)

    # -- room

    def room(self) -> Room:
        """What it has, and what is free."""
        slots = float(self.host.slots or (self.link.about.cpus if self.link.about else 1))
        return Room(
            name=self.host.name,
            slots=slots,
            free=slots - sum(self._held.values()),
            devices=dict(self._counts),
            free_devices=self._allocator.free(),
        )

    def hold(self, job_id: str, request: ResourceRequest) -> tuple[Device, ...]:
        """Give a job what it asks for; there must be room."""
        allocation = self._allocator.allocate(job_id, request.devices)
        if allocation is None:
            msg = f"host {self.host.name} was chosen and has no room for {job_id}"
            raise RuntimeError(msg)
        self._held[job_id] = slots_of(request)
        return allocation.devices

    def release(self, job_id: str) -> None:
        """Take back what a job held. Idempotent."""
        self._held.pop(job_id, None)
        self._allocator.release(job_id)

    def learn(self, kind: str, devices: tuple[Device, ...]) -> None:
        """It has these devices of a kind."""
        if kind not in self._counts:
            self._counts[kind] = len(devices)
            self._allocator.add(devices)

    def knows(self, kind: str) -> bool:
        """True where devices of that kind were looked for."""
        return kind in self._counts

    def probe(self, kind: str) -> tuple[Device, ...]:
        """Look for devices of a kind, on the host.

        Raises:
            ResourceError: nobody knows that kind, or they cannot be looked for.
            BackendUnavailableError: the host cannot be asked.
        """
        provider = self._providers[kind]
        about = self.link.about
        python = self.host.python if about is None else about.executable
        argv = probe_argv(provider, python)
        answer = run(self.link.transport, argv, timeout=_PROBE)
        if answer.code != 0:
            words = answer.errors.strip()[-500:] or answer.output.strip()[-500:]
            msg = (
                f"the probe for {kind!r} devices failed on host {self.host.name} with exit code "
                f"{answer.code}: {words or 'it said nothing'}"
            )
            raise ResourceError(msg)
        try:
            found = check_devices(provider, provider.parse(answer.output))
        except ResourceError as error:
            msg = f"host {self.host.name}: {error}"
            raise ResourceError(msg) from error
        allowed = self.host.gpus
        if kind == "gpu" and allowed is not None:
            found = tuple(device for device in found if device.index in allowed)
        return found

    def environment(self, devices: tuple[Device, ...]) -> dict[str, str]:
        """Environment that makes a process see these devices and no others of their kinds."""
        environ: dict[str, str] = {}
        for kind in {device.kind for device in devices}:
            mine = tuple(device for device in devices if device.kind == kind)
            environ.update(self._providers[kind].environment(mine))
        return environ

    # -- what is done in order, and may wait

    def soon(self, task: Callable[[], None]) -> None:
        """Have something done by the host's own thread."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"fiber-ssh-desk-{self.host.name}", daemon=True
            )
            self._thread.start()
        self._tasks.put(task)

    def close(self) -> None:
        """End the connection and the thread. Idempotent."""
        self._tasks.put(None)
        self.link.close()
        self.streams.close()
        if self._thread is not None:
            self._thread.join(10.0)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BackendUnavailableError as error:
                log.debug("host %s: %s", self.host.name, error)
            except FiberError as error:
                log.warning("host %s: %s", self.host.name, error)
            except Exception:
                log.exception("something went wrong with host %s", self.host.name)
