"""Devices of the engine's machine: looked for in a container, granted to one job at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from fiber._agent.resources.allocator import Allocator
from fiber._agent.resources.probe import check_devices, probe_argv
from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError, ResourceError
from fiber.model import Device, ResourceRequest
from fiber_docker.client import Client
from fiber_docker.container import unique_name

__all__ = ["Devices", "Requests", "request_for"]

#: devices as the engine's API asks for them
Requests = tuple[Mapping[str, Any], ...]


@attrs.frozen
class _Waiting:
    """A job that waits for devices."""

    job_id: str
    wanted: Mapping[str, int]
    then: Callable[[Requests], None]


class Devices:
    """Which devices there are and who has them; thread-safe.

    Args:
        client: the engine.
        providers: those installed, by kind.
        python: the Python of images.
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
        self._waiting: list[_Waiting] = []
        self._listed: tuple[str, ...] = ()

    def known(self) -> Mapping[str, int]:
        """How many are free of each kind that was looked for."""
        with self._lock:
            return dict(self._allocator.free())

    def check(self, resources: ResourceRequest, image: str) -> None:
        """Look for what a job asks for, in a container of its image.

        Raises:
            ResourceError: nobody knows that kind, or there will never be so many.
        """
        for kind, count in resources.devices.items():
            provider = self._providers.get(kind)
            if provider is None:
                installed = ", ".join(sorted(self._providers)) or "none"
                msg = f"no provider of {kind!r} devices is installed; installed are: {installed}"
                raise ResourceError(msg)
            if not count:
                # not even asked whether there are any
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
        self, job_id: str, resources: ResourceRequest, then: Callable[[Requests], None]
    ) -> bool:
        """Grant a job its devices, now or once they are free.

        Args:
            job_id: who gets them, until :meth:`release`.
            resources: how many of which kind; they were checked.
            then: called with them, on this thread or on the one that released them.

        Returns:
            True where they were granted at once.
        """
        waiting = _Waiting(job_id, {k: n for k, n in resources.devices.items() if n}, then)
        if not waiting.wanted:
            then(())
            return True
        with self._lock:
            # first come, first served, also where a later one would fit
            if self._waiting or (granted := self._try(waiting)) is None:
                self._waiting.append(waiting)
                return False
        then(granted)
        return True

    def release(self, job_id: str) -> None:
        """A job has ended, or was given up."""
        served: list[tuple[_Waiting, Requests]] = []
        with self._lock:
            self._allocator.release(job_id)
            self._waiting = [one for one in self._waiting if one.job_id != job_id]
            while self._waiting and (granted := self._try(self._waiting[0])) is not None:
                served.append((self._waiting.pop(0), granted))
        for waiting, granted in served:
            waiting.then(granted)

    def _try(self, waiting: _Waiting) -> Requests | None:
        allocation = self._allocator.allocate(waiting.job_id, waiting.wanted)
        if allocation is None:
            return None
        return tuple(
            request_for(
                self._providers[kind].device_class,
                [device.id for device in allocation.of_kind(kind)],
                self._listed,
            )
            for kind in waiting.wanted
        )

    def _probe(self, provider: ResourceProvider, image: str) -> tuple[Device, ...]:
        info = self._client.call("tell about itself", lambda api: api.info())
        self._listed = tuple(str(one.get("ID")) for one in info.get("DiscoveredDevices") or ())
        argv = probe_argv(provider, self._python)
        everything = request_for(provider.device_class, None, self._listed)
        body = {
            "Image": image,
            "Entrypoint": list(argv[:1]),
            "Cmd": list(argv[1:]),
            "HostConfig": {"DeviceRequests": [everything]},
        }
        who = f"the probe for {provider.kind!r} devices, in a container of {image},"
        try:
            container = self._client.create(unique_name("00000000", "probe"), body)
            try:
                self._client.start(container, "the probe")
                code = self._client.call("wait", lambda api: api.wait(container))["StatusCode"]
                text = b"".join(self._client.logs(container, tail=None, follow=False))
            finally:
                self._client.remove(container)
        except BackendError as error:
            msg = f"{who} could not be run, so that its machine is said to have none: {error}"
            raise ResourceError(msg) from error
        words = text.decode("utf-8", "replace")
        if code:
            msg = f"{who} failed with exit code {code}: {words.strip()[-500:]}"
            raise ResourceError(msg)
        return check_devices(provider, provider.parse(words))


def request_for(
    device_class: str, ids: Sequence[str] | None, listed: Sequence[str]
) -> Mapping[str, Any]:
    """How the engine is asked for devices; pure.

    Args:
        device_class: such as ``vendor.com/kind``, the word of the Container Device Interface.
        ids: which; None for all.
        listed: names of devices that the engine itself knows by that interface.
    """
    vendor, _, kind = device_class.partition("/")
    if any(name.startswith(f"{device_class}=") for name in listed):
        chosen = ["all"] if ids is None else ids
        return {"Driver": "cdi", "DeviceIDs": [f"{device_class}={one}" for one in chosen]}
    # older engines have a driver a vendor, which is called by the vendor's name
    request = {"Driver": vendor.partition(".")[0], "Capabilities": [[kind]]}
    return {**request, "Count": -1} if ids is None else {**request, "DeviceIDs": list(ids)}
