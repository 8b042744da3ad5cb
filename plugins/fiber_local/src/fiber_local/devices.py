"""The devices of this host, looked for once and only when a job asks for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from fiber._agent.resources.probe import probe
from fiber.abc import ResourceProvider
from fiber.exceptions import ResourceError
from fiber.model import Device

__all__ = ["HostDevices"]


class HostDevices:
    """Probes providers; thread-safe.

    Args:
        providers: those installed, by kind.
    """

    def __init__(self, providers: Mapping[str, ResourceProvider]) -> None:
        self._providers = providers
        self._found: dict[str, tuple[Device, ...]] = {}
        self._lock = threading.Lock()

    def known(self) -> Mapping[str, int]:
        """How many there are of each kind that was looked for."""
        with self._lock:
            return {kind: len(devices) for kind, devices in self._found.items()}

    def find(self, kind: str) -> tuple[Device, ...]:
        """All devices of a kind.

        Raises:
            ResourceError: nobody knows that kind, or they cannot be looked for.
        """
        provider = self._providers.get(kind)
        if provider is None:
            installed = ", ".join(sorted(self._providers)) or "none"
            msg = f"no provider of {kind!r} devices is installed; installed are: {installed}"
            raise ResourceError(msg)
        with self._lock:
            if kind not in self._found:
                self._found[kind] = probe(provider)
            return self._found[kind]

    def offer(self, kinds: Iterable[str]) -> tuple[tuple[Device, ...], Mapping[str, bytes]]:
        """All devices of some kinds, and their pickled providers.

        Raises:
            ResourceError: as :meth:`find`.
        """
        from cloudpickle import cloudpickle

        chosen = tuple(kinds)
        devices = tuple(device for kind in chosen for device in self.find(kind))
        return devices, {kind: cloudpickle.dumps(self._providers[kind]) for kind in chosen}
