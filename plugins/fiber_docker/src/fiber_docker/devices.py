"""Devices of the engine's machine: probed in a container, granted to one job at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from fiber._agent.resources import Allocator, probe_argv, provider_of, read_answer
from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError, ResourceError
from fiber.model import Device, ResourceRequest
from fiber_docker.client import Client
from fiber_docker.container import unique_name

#: ``HostConfig.DeviceRequests`` of the engine's API
Requests = tuple[Mapping[str, Any], ...]
#: words of an engine on whose machine the vendor's toolkit is not installed
_NO_DRIVER = "could not select device driver"


@attrs.frozen
class _WaitingJob:
    """A job that waits for devices."""

    job_id: str
    counts: Mapping[str, int]
    on_grant: Callable[[Requests], None]


class Devices:
    """Devices of the engine's machine and their allocation to jobs; thread-safe.

    Args:
        client: the engine.
        providers: installed resource providers by kind.
        python: the Python of images, for probes.
    """

    def __init__(
        self, client: Client, providers: Mapping[str, ResourceProvider], python: str
    ) -> None:
        self._client = client
        self._providers = providers
        self._python = python
        self._lock = threading.Lock()
        self._allocator = Allocator(())
        self._found: dict[str, tuple[Device, ...]] = {}
        self._waiting: list[_WaitingJob] = []
        self._cdi_names: tuple[str, ...] = ()

    def free_counts(self) -> Mapping[str, int]:
        """Number of free devices by kind, of the kinds that were probed."""
        with self._lock:
            return dict(self._allocator.free())

    def probe(self, resources: ResourceRequest, image: str) -> None:
        """Probe for the kinds of devices of a request, once each, in a container of the image.

        Raises:
            ResourceError: no provider of a kind is installed, or the machine has fewer devices.
        """
        for kind, count in resources.devices.items():
            provider = provider_of(kind, self._providers)
            if not count:
                # zero of a kind needs no probe
                continue
            with self._lock:
                if kind not in self._found:
                    self._found[kind] = self._probe(provider, image)
                    self._allocator.add(self._found[kind])
                total = len(self._found[kind])
            if count > total:
                msg = f"{count} of {kind!r} are asked for, and the engine's machine has {total}"
                raise ResourceError(msg)

    def grant(
        self, job_id: str, resources: ResourceRequest, on_grant: Callable[[Requests], None]
    ) -> bool:
        """Grant a job its devices, now or once they are free.

        Args:
            job_id: the job that holds them until :meth:`release`.
            resources: numbers by kind; :meth:`probe` was called with them.
            on_grant: called with them, on this thread or on the one that released them.

        Returns:
            True where they were granted at once.
        """
        waiting = _WaitingJob(job_id, {k: n for k, n in resources.devices.items() if n}, on_grant)
        if not waiting.counts:
            on_grant(())
            return True
        with self._lock:
            # first come, first served, also where a later one would fit
            if self._waiting or (granted := self._try(waiting)) is None:
                self._waiting.append(waiting)
                return False
        on_grant(granted)
        return True

    def release(self, job_id: str) -> None:
        """Free the devices of a job, or end its waiting, and grant devices to those that wait."""
        served: list[tuple[_WaitingJob, Requests]] = []
        with self._lock:
            self._allocator.release(job_id)
            self._waiting = [one for one in self._waiting if one.job_id != job_id]
            while self._waiting and (granted := self._try(self._waiting[0])) is not None:
                served.append((self._waiting.pop(0), granted))
        for waiting, granted in served:
            waiting.on_grant(granted)

    def _try(self, waiting: _WaitingJob) -> Requests | None:
        allocation = self._allocator.allocate(waiting.job_id, waiting.counts)
        if allocation is None:
            return None
        return tuple(
            request_for(
                self._providers[kind].device_class,
                [device.id for device in allocation.of_kind(kind)],
                self._cdi_names,
            )
            for kind in waiting.counts
        )

    def _probe(self, provider: ResourceProvider, image: str) -> tuple[Device, ...]:
        info = self._client.call("report its info", lambda api: api.info())
        self._cdi_names = tuple(str(one.get("ID")) for one in info.get("DiscoveredDevices") or ())
        argv = probe_argv(provider, self._python)
        everything = request_for(provider.device_class, None, self._cdi_names)
        body = {
            "Image": image,
            "Entrypoint": list(argv[:1]),
            "Cmd": list(argv[1:]),
            "HostConfig": {"DeviceRequests": [everything]},
        }
        try:
            container = self._client.create(unique_name("00000000", "probe"), body)
            try:
                self._client.start(container, "the probe")
                code = self._client.call("wait", lambda api: api.wait(container))["StatusCode"]
                text = b"".join(self._client.logs(container, tail=None, follow=False))
            finally:
                self._client.remove(container)
        except BackendError as error:
            advice = ""
            if _NO_DRIVER in str(error):
                toolkit = f"{_driver(provider.device_class)} container toolkit"
                advice = f"; install the {toolkit} on the engine's machine"
            msg = (
                f"{provider.kind!r} devices cannot be had in containers of {image}: {error}{advice}"
            )
            raise ResourceError(msg) from error
        subject = f"the probe for {provider.kind!r} devices, in a container of {image},"
        return read_answer(provider, subject, code, text.decode("utf-8", "replace"))


def request_for(
    device_class: str, ids: Sequence[str] | None, cdi_names: Sequence[str]
) -> Mapping[str, Any]:
    """Make one entry of ``DeviceRequests``; pure.

    Args:
        device_class: the Container Device Interface's kind, such as ``vendor.com/kind``.
        ids: ids of devices; None for all.
        cdi_names: CDI names of devices that the engine reports.
    """
    kind = device_class.partition("/")[2]
    if any(name.startswith(f"{device_class}=") for name in cdi_names):
        chosen = ["all"] if ids is None else ids
        return {"Driver": "cdi", "DeviceIDs": [f"{device_class}={one}" for one in chosen]}
    request = {"Driver": _driver(device_class), "Capabilities": [[kind]]}
    return {**request, "Count": -1} if ids is None else {**request, "DeviceIDs": list(ids)}


def _driver(device_class: str) -> str:
    """Engines without CDI have one driver for each vendor, named after it."""
    return device_class.partition("/")[0].partition(".")[0]
