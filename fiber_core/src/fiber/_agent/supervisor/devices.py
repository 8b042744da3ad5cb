"""Which job gets which devices, and which wait; no processes, no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from fiber._agent.resources.allocator import Allocator
from fiber.model import Allocation, Device

__all__ = ["DeviceQueue", "Grant"]

#: the pickled provider of one kind and the devices of it that a job got
Grant = tuple[bytes, tuple[Device, ...]]


class DeviceQueue:
    """Grants devices in the order in which they were asked for.

    A job passes those that wait before it only where it wants nothing that they want.
    """

    def __init__(self) -> None:
        self._allocator = Allocator(())
        self._providers: dict[str, bytes] = {}
        self._waiting: OrderedDict[str, Mapping[str, int]] = OrderedDict()

    def offer(self, devices: Iterable[Device], providers: Mapping[str, bytes]) -> None:
        """Learn of the devices of some kinds; kinds that are known already stay as they are."""
        new = {kind: data for kind, data in providers.items() if kind not in self._providers}
        self._allocator.add(device for device in devices if device.kind in new)
        self._providers.update(new)

    def unknown(self, counts: Mapping[str, int]) -> list[str]:
        """Kinds that were never offered."""
        return sorted(kind for kind in counts if kind not in self._providers)

    def ask(self, job_id: str, counts: Mapping[str, int]) -> Allocation | None:
        """Ask for devices; None: the job waits, and :meth:`release` will name it.

        Raises:
            ResourceError: this host will never have that many.
        """
        blocked = any(counts.keys() & ahead.keys() for ahead in self._waiting.values())
        allocation = self._allocator.allocate(job_id, counts)
        if allocation is not None and blocked:
            self._allocator.release(job_id)
            allocation = None
        if allocation is None:
            self._waiting[job_id] = counts
        return allocation

    def release(self, job_id: str) -> list[Allocation]:
        """A job has ended, whether it ran or waited; returns what that grants to others."""
        self._waiting.pop(job_id, None)
        self._allocator.release(job_id)
        granted = []
        wanted: set[str] = set()
        for waiting, counts in tuple(self._waiting.items()):
            if not wanted & counts.keys():
                allocation = self._allocator.allocate(waiting, counts)
                if allocation is not None:
                    del self._waiting[waiting]
                    granted.append(allocation)
                    continue
            wanted |= counts.keys()
        return granted

    def grants(self, allocation: Allocation) -> tuple[Grant, ...]:
        """An allocation with the providers that know what to tell its processes."""
        kinds = dict.fromkeys(device.kind for device in allocation.devices)
        return tuple((self._providers[kind], allocation.of_kind(kind)) for kind in kinds)

    def free(self) -> Mapping[str, int]:
        """Devices that nobody holds, by kind."""
        return self._allocator.free()

    def reason(self, job_id: str) -> str:
        """Why a job waits, for people."""
        counts = self._waiting[job_id]
        free = self.free()
        wants = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        has = ", ".join(f"{free[kind]} {kind}" for kind in sorted(counts))
        ahead = list(self._waiting).index(job_id)
        queue = f"; {ahead} jobs wait before it" if ahead else ""
        return f"waits for {wants}, free now: {has}{queue}"
