"""Choice of a host for a job, by free slots and free devices; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from fiber.exceptions import ResourceError
from fiber.model import ResourceRequest

# sums of fractions of CPUs are not exact
_EPSILON = 1e-9


@attrs.frozen(kw_only=True)
class HostCapacity:
    """Slots and devices of one host, and those of them that are free."""

    #: name of the host
    name: str
    #: number of jobs of one slot that it runs at once
    slots: float
    #: free slots
    free: float
    #: number of devices by kind, of the kinds that it was probed for
    devices: Mapping[str, int] = attrs.field(factory=dict)
    #: number of free devices by kind
    free_devices: Mapping[str, int] = attrs.field(factory=dict)


def slots_of(request: ResourceRequest) -> float:
    """Slots that a job takes: its CPUs, or one."""
    return 1.0 if request.cpu is None else request.cpu


def choose(hosts: Sequence[HostCapacity], request: ResourceRequest) -> str | None:
    """Choose the host with the most free slots among those with enough slots and devices.

    Ties go to the first host listed. A job without devices prefers hosts without devices.

    Args:
        hosts: connected hosts, in the user's order.
        request: resources of the job.

    Returns:
        The host's name; None while other jobs hold the slots or devices.

    Raises:
        ResourceError: none of the hosts will ever have that much.
    """
    if not hosts:
        return None
    able = [host for host in hosts if _fits(host.slots, host.devices, request)]
    if not able:
        raise ResourceError(_never(hosts, request))
    free = [host for host in able if _fits(host.free, host.free_devices, request)]
    if not free:
        return None
    needs_devices = any(request.devices.values())

    def preference(host: HostCapacity) -> tuple[bool, float]:
        matches = needs_devices or not any(host.devices.values())
        return matches, host.free

    return max(free, key=preference).name


def waiting_for(hosts: Sequence[HostCapacity], request: ResourceRequest) -> str:
    """The status message of a job that waits for slots or devices."""
    if not hosts:
        return "it waits for a host that can be reached"
    free = sum(max(0.0, host.free) for host in hosts)
    required = f"{slots_of(request):g} free slots" if slots_of(request) != 1 else "a free slot"
    devices = " and ".join(f"{n} of {kind!r}" for kind, n in request.devices.items() if n)
    if devices:
        required += f" with {devices}"
    slots = sum(host.slots for host in hosts)
    return f"it waits for {required}; {free:g} of {slots:g} slots on {len(hosts)} hosts are free"


def _fits(slots: float, devices: Mapping[str, int], request: ResourceRequest) -> bool:
    return slots + _EPSILON >= slots_of(request) and all(
        devices.get(kind, 0) >= count for kind, count in request.devices.items() if count
    )


def _never(hosts: Sequence[HostCapacity], request: ResourceRequest) -> str:
    asked = [f"{slots_of(request):g} slots"]
    asked += [f"{count} of {kind!r}" for kind, count in request.devices.items() if count]
    have = "; ".join(
        ", ".join(
            [f"{host.name} has {host.slots:g} slots"]
            + [f"{host.devices.get(kind, 0)} of {kind!r}" for kind in request.devices]
        )
        for host in hosts
    )
    return f"a job asks for {' and '.join(asked)} on one host, and {have}; ask for fewer"
