"""What a job asks for and what it was given: requests, devices, allocations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fiber._base import values

_EMPTY: Mapping[str, int] = MappingProxyType({})


def _freeze(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(counts)


def _positive_or_none(_: Any, attribute: values.Field, value: float | None) -> None:
    if value is not None and not value > 0:
        msg = f"{attribute.name} must be positive, got {value!r}"
        raise ValueError(msg)


def _counts(_: Any, attribute: values.Field, value: Mapping[str, int]) -> None:
    for kind, count in value.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            msg = f"{attribute.name}[{kind!r}] must be a whole number of devices, got {count!r}"
            raise ValueError(msg)


@values.frozen(kw_only=True)
class ResourceRequest:
    """What one job asks for; None and absent kinds mean "as much as the platform gives"."""

    #: CPUs, fractions allowed
    cpu: float | None = values.field(default=None, validator=_positive_or_none)
    #: memory in MB (2**20 bytes)
    memory: int | None = values.field(default=None, validator=_positive_or_none)
    #: devices by kind, for example ``{"gpu": 2}``; kinds are those of the resource providers
    devices: Mapping[str, int] = values.field(factory=dict, converter=_freeze, validator=_counts)

    @property
    def is_empty(self) -> bool:
        """True where nothing at all was asked for."""
        return self.cpu is None and self.memory is None and not any(self.devices.values())


@values.frozen(kw_only=True)
class Device:
    """One device that a provider's probe found on a host."""

    #: the provider's kind, for example "gpu"
    kind: str
    #: what the device's own software calls it (an NVIDIA UUID or index)
    id: str
    #: number on its host, from 0; parts of one partitioned device share it
    index: int
    #: model name for people
    name: str = ""
    #: memory in MB, where it has any
    memory: int | None = None


@values.frozen(kw_only=True)
class Allocation:
    """Devices granted to one job until it ends."""

    #: the job they are granted to
    job_id: str
    #: granted devices, ordered by kind and index
    devices: tuple[Device, ...] = ()

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """The granted devices of one kind."""
        return tuple(device for device in self.devices if device.kind == kind)
