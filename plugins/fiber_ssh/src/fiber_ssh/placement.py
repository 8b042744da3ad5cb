"""Which host a job goes to: pure, by free slots and free devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from fiber.exceptions import ResourceError
from fiber.model import ResourceRequest

__all__ = ["Room", "choose", "slots_of", "waiting_for"]

# sums of fractions of CPUs are not exact
_EPSILON = 1e-9


@attrs.frozen(kw_only=True)
class Room:
    """What one host has, and what is free of it."""

    #: the host
    name: str
    #: jobs of one slot that it runs at once
    slots: float
    #: slots that nobody holds
    free: float
    #: devices it has, by kind, of the kinds that were looked for
    devices: Mapping[str, int] = attrs.field(factory=dict)
    #: devices that nobody holds, by kind
    free_devices: Mapping[str, int] = attrs.field(factory=dict)


def slots_of(request: ResourceRequest) -> float:
    """Slots that a job takes: its CPUs, or one."""
    return 1.0 if request.cpu is None else request.cpu


def choose(rooms: Sequence[Room], request: ResourceRequest) -> str | None:
    """The host for a job: of those with enough of all the one with the most free slots.

    Of several the first one is taken, save that jobs without devices leave hosts with devices to
    those that need them.

    Args:
        rooms: the hosts that can be reached, in the user's order.
        request: what the job needs.

    Returns:
        The host's name; None while others hold what the job needs.

    Raises:
        ResourceError: none of the hosts will ever have that much.
    """
    if not rooms:
        return None
    able = [room for room in rooms if _fits(room.slots, room.devices, request)]
    if not able:
        raise ResourceError(_never(rooms, request))
    free = [room for room in able if _fits(room.free, room.free_devices, request)]
    if not free:
        return None
    wants_devices = any(request.devices.values())

    def worth(room: Room) -> tuple[bool, float]:
        spares = wants_devices or not any(room.devices.values())
        return spares, room.free

    return max(free, key=worth).name


def waiting_for(rooms: Sequence[Room], request: ResourceRequest) -> str:
    """A sentence on what a job waits for."""
    if not rooms:
        return "it waits for a host that can be reached"
    free = sum(max(0.0, room.free) for room in rooms)
    wanted = f"{slots_of(request):g} free slots" if slots_of(request) != 1 else "a free slot"
    devices = " and ".join(f"{n} of {kind!r}" for kind, n in request.devices.items() if n)
    if devices:
        wanted += f" with {devices}"
    slots = sum(room.slots for room in rooms)
    return f"it waits for {wanted}; {free:g} of {slots:g} slots on {len(rooms)} hosts are free"


def _fits(slots: float, devices: Mapping[str, int], request: ResourceRequest) -> bool:
    return slots + _EPSILON >= slots_of(request) and all(
        devices.get(kind, 0) >= count for kind, count in request.devices.items() if count
    )


def _never(rooms: Sequence[Room], request: ResourceRequest) -> str:
    asked = [f"{slots_of(request):g} slots"]
    asked += [f"{count} of {kind!r}" for kind, count in request.devices.items() if count]
    have = "; ".join(
        ", ".join(
            [f"{room.name} has {room.slots:g} slots"]
            + [f"{room.devices.get(kind, 0)} of {kind!r}" for kind in request.devices]
        )
        for room in rooms
    )
    return f"a job asks for {' and '.join(asked)} on one host, and {have}; ask for fewer"
