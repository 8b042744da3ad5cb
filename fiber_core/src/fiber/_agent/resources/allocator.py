"""Allocation of whole devices of one host to jobs, lowest index first; pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from fiber.exceptions import ResourceError
from fiber.model.job import Allocation, Device


class Allocator:
    """Grants each device to one job at a time.

    A state machine without I/O, locks or waiting: the caller serialises the calls, and repeats
    those that returned None after a :meth:`release`. Which devices a job gets follows from the
    order of calls alone.

    Args:
        devices: all devices of the host, of any kinds.

    Raises:
        ResourceError: two devices of one kind have the same id.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._granted: dict[str, Allocation] = {}
        self.add(devices)

    def add(self, devices: Iterable[Device]) -> None:
        """Add devices of the host; grants stay as they are.

        Raises:
            ResourceError: two devices of one kind have the same id.
        """
        known = [*(d for of_kind in self._devices.values() for d in of_kind), *devices]
        known.sort(key=lambda device: (device.kind, device.index, device.id))
        found: dict[str, tuple[Device, ...]] = {}
        seen: set[tuple[str, str]] = set()
        for device in known:
            if (device.kind, device.id) in seen:
                msg = f"device {device.id!r} of kind {device.kind!r} is listed twice on this host"
                raise ResourceError(msg)
            seen.add((device.kind, device.id))
            found[device.kind] = (*found.get(device.kind, ()), device)
        self._devices = found

    def allocate(
        self, job_id: str, counts: Mapping[str, int], *, without: Container[Device] = ()
    ) -> Allocation | None:
        """Grant a job all the devices it asks for, or none.

        Args:
            job_id: the job that gets them, until :meth:`release`.
            counts: how many by kind.
            without: devices that it cannot get now.

        Returns:
            The allocation, or None while too many are granted to other jobs.

        Raises:
            ResourceError: this host will never have that many; the text has the number.
            ValueError: the job holds an allocation already, or a count is negative.
        """
        if job_id in self._granted:
            msg = f"job {job_id!r} already holds devices; release them first"
            raise ValueError(msg)
        for kind, count in sorted(counts.items()):
            if count < 0:
                msg = f"job {job_id!r} asks for {count} devices of kind {kind!r}"
                raise ValueError(msg)
            total = len(self._devices.get(kind, ()))
            if count > total:
                msg = (
                    f"job {job_id!r} asks for {count} of {kind!r} and this host has {total}; "
                    f"ask for fewer or run it where there are more"
                )
                raise ResourceError(msg)
        taken = self._taken()
        granted: list[Device] = []
        for kind, count in sorted(counts.items()):
            of_kind = (d for d in self._devices.get(kind, ()) if d not in without)
            free = [d for d in of_kind if (kind, d.id) not in taken]
            if count > len(free):
                return None
            granted.extend(free[:count])
        allocation = Allocation(job_id=job_id, devices=tuple(granted))
        self._granted[job_id] = allocation
        return allocation

    def release(self, job_id: str) -> tuple[Device, ...]:
        """Free the devices of a job, and return them; a job that holds none is no error."""
        granted = self._granted.pop(job_id, None)
        return () if granted is None else granted.devices

    def holders(self, kinds: Iterable[str]) -> list[str]:
        """The jobs that hold devices of some kinds, those that got them first first."""
        wanted = set(kinds)
        return [
            job_id
            for job_id, held in self._granted.items()
            if any(device.kind in wanted for device in held.devices)
        ]

    def free(self) -> Mapping[str, int]:
        """Number of free devices by kind; kinds without a free one are listed with 0."""
        taken = self._taken()
        return {
            kind: sum((kind, device.id) not in taken for device in devices)
            for kind, devices in self._devices.items()
        }

    def _taken(self) -> set[tuple[str, str]]:
        return {(d.kind, d.id) for held in self._granted.values() for d in held.devices}
