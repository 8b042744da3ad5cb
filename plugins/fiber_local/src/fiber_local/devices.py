"""Devices of this host, probed once a kind, when a job first asks for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from fiber._agent.resources.probe import probe, provider_of
from fiber.abc import ResourceProvider
from fiber.model import Device

__all__ = ["HostDevices"]


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
