"""All hosts and what is known of each: connection, compatibility, silence, slots and devices.

A :class:`HostState` is one host, :class:`HostStates` are those of a program: they are connected to
together, waited for, probed for devices, and shut down. A :class:`LeaseMonitor` reports hosts whose
agents have been silent for too long; :func:`incompatibility` compares versions (pure).
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from fiber._agent.lease import LeaseTable
from fiber._agent.resources import Allocator, probe_argv, provider_of, read_answer
from fiber._base.threads import CallbackThread
from fiber.abc import ResourceProvider
from fiber.backend_parts.threads import Timers, run_at_once
from fiber.exceptions import BackendError, BackendUnavailableError, FiberError, ResourceError
from fiber.model import Device, JobSpec, ResourceRequest, Timing
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.config import SshConfig, SshTiming
from fiber_ssh.exec_channel import HostInfo, run
from fiber_ssh.files import FileSender
from fiber_ssh.hosts import Host
from fiber_ssh.placement import HostCapacity, slots_of
from fiber_ssh.streams import Streams


def incompatibility(
    info: HostInfo, host: str, fiber: str, python: tuple[int, int] | None = None
) -> str:
    """Why processes of this program cannot run on a host, and the fix; empty where they can.

    Args:
        info: the host's versions.
        host: its name in the settings.
        fiber: this program's version of fiber-core.
        python: this program's version of Python; the running one if omitted.
    """
    mine = python or sys.version_info[:2]
    theirs = info.python[:2]
    if theirs != mine:
        local, remote = ".".join(map(str, mine)), ".".join(map(str, theirs))
        return (
            f"{info.executable} on host {host} is Python {remote}, and this program runs on "
            f"{local}: functions cannot be sent between the two; name a Python {local} with "
            f"'python = …' in the hosts file, or with FIBER_SSH_PYTHON"
        )
    install = f"ssh {host} {shlex.quote(info.executable)} -m pip install fiber-core=={fiber}"
    if info.fiber is None:
        return f"{info.executable} on host {host} has no fiber; run: {install}"
    if info.fiber != fiber:
        return f"host {host} has fiber-core {info.fiber}, and this program {fiber}; run: {install}"
    return ""


log = logging.getLogger("fiber")


class HostState:
    """State of one host: connection, compatibility, and the slots and devices that jobs hold.

    The owner's lock guards slots and devices. A thread of the host's own, ``fiber-ssh-tasks-HOST``,
    runs what has to be sent to it in order.

    Args:
        link: the connection.
        config: the settings.
        providers: installed resource providers by kind.
        timing: durations.
    """

    def __init__(
        self,
        link: AgentLink,
        config: SshConfig,
        providers: Mapping[str, ResourceProvider],
        timing: SshTiming,
    ) -> None:
        self.link = link
        self.streams = Streams(link.host.name, config.connect_timeout)
        self._config = config
        self._providers = providers
        self._timing = timing
        self._allocator = Allocator(())
        self._counts: dict[str, int] = {}
        self._sender = FileSender(config, link.host, timing.fresh_listing)
        #: why processes of this program cannot run on it, with the fix; empty where they can
        self.incompatibility = ""
        self._held: dict[str, float] = {}
        self._tasks = CallbackThread(f"fiber-ssh-tasks-{link.host.name}")

    @property
    def host(self) -> Host:
        """Settings of the host."""
        return self.link.host

    def on_connected(self) -> None:
        """Compare versions after a connection was made, for the first time or again."""
        info = self.link.info
        if info is not None:
            mine = importlib.metadata.version("fiber-core")
            self.incompatibility = incompatibility(info, self.host.name, mine)
            if self.incompatibility:
                log.warning("fiber: %s", self.incompatibility)

    def send_files(self, spec: JobSpec) -> str | None:
        """Send the files that the settings name; returns their folder, None for none."""
        info = self.link.info
        if not self._config.send or info is None:
            return None
        return self._sender.send(self.link.transport, info, spec.run_id)

    # -- slots and devices

    def capacity(self) -> HostCapacity:
        """Its slots and devices, and those that are free."""
        slots = float(self.host.slots or (self.link.info.cpus if self.link.info else 1))
        return HostCapacity(
            name=self.host.name,
            slots=slots,
            free=slots - sum(self._held.values()),
            devices=dict(self._counts),
            free_devices=self._allocator.free(),
        )

    def allocate(self, job_id: str, request: ResourceRequest) -> tuple[Device, ...]:
        """Take slots and devices for a job; they must be free."""
        allocation = self._allocator.allocate(job_id, request.devices)
        if allocation is None:
            msg = f"host {self.host.name} was chosen and has no room for {job_id}"
            raise RuntimeError(msg)
        self._held[job_id] = slots_of(request)
        return allocation.devices

    def release(self, job_id: str) -> None:
        """Free the slots and devices of a job. Idempotent."""
        self._held.pop(job_id, None)
        self._allocator.release(job_id)

    def add_devices(self, kind: str, devices: tuple[Device, ...]) -> None:
        """Add the devices of a kind that a probe has found."""
        if kind not in self._counts:
            self._counts[kind] = len(devices)
            self._allocator.add(devices)

    def was_probed(self, kind: str) -> bool:
        """True where the host was probed for devices of that kind."""
        return kind in self._counts

    def probe(self, kind: str) -> tuple[Device, ...]:
        """Run a provider's probe for devices on the host.

        Raises:
            ResourceError: the probe failed.
            BackendUnavailableError: the host is not connected.
        """
        provider = self._providers[kind]
        info = self.link.info
        python = self.host.python if info is None else info.executable
        argv = probe_argv(provider, python)
        answer = run(self.link.transport, argv, timeout=self._timing.device_probe)
        subject = f"the probe for {kind!r} devices on host {self.host.name}"
        found = read_answer(provider, subject, answer.code, answer.output, answer.errors)
        allowed = self.host.gpus
        if kind == "gpu" and allowed is not None:
            found = tuple(device for device in found if device.index in allowed)
        return found

    def environment(self, devices: tuple[Device, ...]) -> dict[str, str]:
        """Environment variables that restrict a process to these devices of their kinds."""
        environ: dict[str, str] = {}
        for kind in {device.kind for device in devices}:
            mine = tuple(device for device in devices if device.kind == kind)
            environ.update(self._providers[kind].environment(mine))
        return environ

    # -- tasks in order

    def enqueue(self, task: Callable[[], None]) -> None:
        """Run a task on the host's own thread, after those before it."""
        self._tasks.put(self._attempt, task)

    def close(self) -> None:
        """End the connection and the thread. Idempotent."""
        self.link.close()
        self.streams.close()
        self._tasks.close(self._timing.host_end)

    def _attempt(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BackendUnavailableError as error:
            log.debug("host %s: %s", self.host.name, error)
        except FiberError as error:
            log.warning("fiber: host %s: %s", self.host.name, error)
        except Exception:
            log.exception("fiber: something went wrong with host %s", self.host.name)


class HostStates:
    """All hosts of a program by name, in the user's order.

    ``changed`` is notified when a connection came up or failed; its lock guards slots and devices.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        config: SshConfig,
        providers: Mapping[str, ResourceProvider],
        make: Callable[[Host], HostState],
        changed: threading.Condition,
        lease: float,
        timing: SshTiming,
    ) -> None:
        self._config = config
        self._providers = providers
        self._changed = changed
        self._has_waited_for_all = False
        self._timing = timing
        self._reconnect_timeout = min(timing.reconnect, lease)
        self._by_name = {host.name: make(host) for host in hosts}

    def __getitem__(self, name: str) -> HostState:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[HostState]:
        return iter(self._by_name.values())

    def __str__(self) -> str:
        return ", ".join(self._by_name)

    def connected(self) -> list[HostState]:
        """Hosts that are connected now."""
        return [host_state for host_state in self if host_state.link.is_up]

    def wait_connected(self, *, every: bool) -> list[HostState]:
        """Connected hosts, once there is one; with ``every``, once each was tried.

        Raises:
            BackendUnavailableError: none could be connected to, with the reason for each.
        """

        def were_tried() -> bool:
            tried = [host_state.link.was_tried for host_state in self]
            return all(tried) or (not every and bool(self.connected()))

        with self._changed:
            self._changed.wait_for(were_tried, self._config.connect_timeout * 4)
            if not self._has_waited_for_all:
                # else all jobs of a small pool would go to the host that answered first
                self._has_waited_for_all = True
                self._changed.wait_for(
                    lambda: all(s.link.was_tried for s in self), self._timing.wait_for_all
                )
            self._changed.wait_for(
                lambda: _have_reconnected(self, every=every), self._reconnect_timeout
            )
            found = self.connected()
        if not found:
            why = "; ".join(f"{s.host.name}: {s.link.failure or 'no answer'}" for s in self)
            msg = f"no ssh host can be asked ({why})"
            raise BackendUnavailableError(msg)
        return found

    def wait_reconnected(self, host_state: HostState) -> None:
        """Wait a moment for a host whose connection dropped.

        Raises:
            BackendUnavailableError: it is still not connected.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: _have_reconnected([host_state], every=True), self._reconnect_timeout
            )
        if not host_state.link.is_up:
            raise host_state.link.unavailable()

    def probe(self, kinds: Sequence[str]) -> None:
        """Probe all hosts at once for devices of kinds that they were not probed for yet.

        Raises:
            BackendUnavailableError: no host is connected.
            ResourceError: no provider of a kind is installed, or no host can be probed.
        """
        for kind in kinds:
            provider_of(kind, self._providers)
        if not kinds:
            return
        failures: list[Exception] = []
        asked = [
            (s, k) for k in kinds for s in self.wait_connected(every=True) if not s.was_probed(k)
        ]

        def look(host_state: HostState, kind: str) -> None:
            try:
                found = host_state.probe(kind)
            except (BackendError, ResourceError) as error:
                failures.append(error)
                log.warning("fiber: %s", error)
                return
            with self._changed:
                host_state.add_devices(kind, found)

        run_at_once(functools.partial(look, *pair) for pair in asked)
        if asked and len(failures) == len(asked):
            raise failures[0]

    def close(self, run_id: str | None) -> None:
        """End the jobs of a run that are not detached; close the connections to all hosts.

        Args:
            run_id: the run, None where there is none.
        """
        if run_id is not None:
            asked = [
                host_state.link.send_request("release", {"run": run_id})
                for host_state in self.connected()
            ]
            deadline = time.monotonic() + self._timing.release
            for request in asked:
                request.done.wait(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + self._timing.last_output
            for host_state in self:
                if host_state.link.is_up:
                    host_state.link.followers.wait_ended(max(0.0, deadline - time.monotonic()))
        run_at_once(host_state.close for host_state in self)


def _have_reconnected(host_states: HostStates | Sequence[HostState], *, every: bool) -> bool:
    """True where no connection has dropped that is about to be made again."""
    links = [host_state.link for host_state in host_states]
    if not every and any(link.is_up for link in links):
        return True
    return all(link.is_up or not link.was_up for link in links)


#: key of the next check
_CHECK = "check"


class LeaseMonitor:
    """Leases of hosts by name, checked by the thread ``fiber-ssh-leases``; thread-safe.

    Args:
        lease: seconds of silence after which a lease expires.
        timing: how often leases are checked, and by how much a check may be late.
        expired: called with a host's name and the seconds of its silence.
        stale: called with a host's name after half of its lease in silence, to have its
            connection made anew.
    """

    def __init__(
        self,
        lease: float,
        timing: Timing,
        expired: Callable[[str, float], None],
        stale: Callable[[str], None],
    ) -> None:
        self._lease = lease
        self._interval = timing.heartbeat
        self._expired = expired
        self._stale = stale
        self._table: LeaseTable[str] = LeaseTable(lease=lease, silence=lease, timing=timing)
        self._renewed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._timers = Timers("fiber-ssh-leases")

    def start(self) -> None:
        """Begin to check."""
        self._timers.set(_CHECK, self._interval, self._check)

    def renew(self, name: str) -> None:
        """Renew a host's lease at a heartbeat."""
        now = time.monotonic()
        with self._lock:
            self._renewed[name] = now
            if name in self._table:
                self._table.renew(name, now)
            else:
                self._table.connected(name, now)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._timers.close()

    def _check(self) -> None:
        now = time.monotonic()
        with self._lock:
            expired = self._table.expire(now)
            stale = [n for n, t in self._renewed.items() if now - t > self._lease / 2]
            for name in stale:
                del self._renewed[name]
        # whatever becomes of these: the next check is due
        self.start()
        for name in stale:
            self._stale(name)
        for one in expired:
            self._expired(one.key, one.silent)
