"""Queue of jobs for the devices of one host; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from fiber._agent.resources.allocator import Allocator
from fiber.model import Allocation, Device

__all__ = ["DeviceQueue", "Grant"]

#: most jobs that are named as the holders of devices
_MOST_NAMED = 3
#: the pickled provider of one kind and the devices of it that a job got
Grant = tuple[bytes, tuple[Device, ...]]


class DeviceQueue:
    """Grants devices first come, first served.

    A job overtakes jobs that wait only if it needs no kind of device that they wait for.
    """

    def __init__(self) -> None:
        self._allocator = Allocator(())
        self._providers: dict[str, bytes] = {}
        self._waiting: OrderedDict[str, Mapping[str, int]] = OrderedDict()
        #: of jobs that hold devices or wait for some
        self._names: dict[str, str] = {}

    def offer(self, devices: Iterable[Device], providers: Mapping[str, bytes]) -> None:
        """Add the devices of some kinds; kinds that are known already stay as they are."""
        new = {kind: data for kind, data in providers.items() if kind not in self._providers}
        self._allocator.add(device for device in devices if device.kind in new)
        self._providers.update(new)

    def unknown(self, counts: Mapping[str, int]) -> list[str]:
        """Kinds that were never offered."""
        return sorted(kind for kind in counts if kind not in self._providers)

    def request(self, job_id: str, counts: Mapping[str, int], name: str = "") -> Allocation | None:
        """Request devices for a job; None: the job waits until :meth:`release` returns its grant.

        Args:
            job_id: the job.
            counts: how many by kind.
            name: that people know it by; its id if omitted.

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
        self._names[job_id] = name or job_id
        return allocation

    def release(self, job_id: str) -> list[Allocation]:
        """Remove a job that ran or waited; returns the grants that this makes possible."""
        self._waiting.pop(job_id, None)
        self._names.pop(job_id, None)
        self._allocator.release(job_id)
        granted = []
        blocked_kinds: set[str] = set()
        for waiting, counts in tuple(self._waiting.items()):
            if not blocked_kinds & counts.keys():
                allocation = self._allocator.allocate(waiting, counts)
                if allocation is not None:
                    del self._waiting[waiting]
                    granted.append(allocation)
                    continue
            blocked_kinds |= counts.keys()
        return granted

    def grants(self, allocation: Allocation) -> tuple[Grant, ...]:
        """Devices of an allocation by kind, each with the pickled provider of that kind."""
        kinds = dict.fromkeys(device.kind for device in allocation.devices)
        return tuple((self._providers[kind], allocation.of_kind(kind)) for kind in kinds)

    def free(self) -> Mapping[str, int]:
        """Number of free devices by kind."""
        return self._allocator.free()

    def waiting(self) -> tuple[str, ...]:
        """The jobs that wait, in their order."""
        return tuple(self._waiting)

    def reason(self, job_id: str) -> str:
        """Why a job waits and who has what it waits for, a sentence for people."""
        counts = self._waiting[job_id]
        free = self.free()
        needed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        has = ", ".join(f"{free[kind]} {kind}" for kind in sorted(counts))
        # without its place in the queue, so that many that wait for the same are told of in one line
        queue = "" if next(iter(self._waiting)) == job_id else "; others wait before it"
        names = [self._names[holder] for holder in self._allocator.holders(counts)]
        more = len(names) - _MOST_NAMED
        # to name all but one takes no less room
        shown = names if more <= 1 else [*names[:_MOST_NAMED], f"{more} more"]
        held = f", held by {_listed(shown)}" if shown else ""
        return f"waits for {needed}, free now: {has}{held}{queue}"


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
