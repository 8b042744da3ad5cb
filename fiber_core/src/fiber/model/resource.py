"""Resources of jobs: amounts of memory, requests, devices and allocations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fiber._base import values

__all__ = ["megabytes"]

_FACTORS = {
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY = r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[a-zA-Z]{0,2}|[eE][+-]?\d{1,2})"
_MEBI = 2**20


def megabytes(value: int | str) -> int:
    """Read an amount of memory in MB (2**20 bytes), rounded up.

    Args:
        value: a positive whole number of MB, or a Kubernetes quantity with its unit: ``"4Gi"``,
            ``"512Mi"``, ``"2G"``, ``"1.5e9"``.

    Raises:
        TypeError: neither a whole number nor a text.
        ValueError: not positive, or no quantity; the text says what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        msg = f"memory must be MB as a whole number or a quantity such as '4Gi', got {value!r}"
        raise TypeError(msg)
    if isinstance(value, int):
        if value <= 0:
            msg = f"memory must be positive, got {value!r}"
            raise ValueError(msg)
        return value
    match = re.fullmatch(_QUANTITY, value.strip())
    if match is None:
        raise ValueError(_wrong(value))
    suffix = match["suffix"]
    if suffix == "":
        msg = (
            f"memory {value!r} has no unit: write the number {value.strip()} itself for MB, "
            f"or a unit as in '{value.strip()}Mi'"
        )
        raise ValueError(msg)
    if suffix == "m":
        # Docker reads it as mega, Kubernetes as a thousandth
        number = match["number"]
        msg = f"memory {value!r} counts thousandths of a byte: write '{number}Mi'"
        raise ValueError(msg)
    from decimal import Decimal

    if suffix[0] in "eE" and len(suffix) > 1 and suffix != "Ei":
        size = Decimal(match["number"] + suffix) if suffix[1] in "+-0123456789" else None
    else:
        factor = _FACTORS.get(suffix)
        size = None if factor is None else Decimal(match["number"]) * factor
    if size is None:
        raise ValueError(_wrong(value))
    if size <= 0:
        msg = f"memory must be positive, got {value!r}"
        raise ValueError(msg)
    return math.ceil(size / _MEBI)


def _wrong(value: str) -> str:
    return (
        f"memory {value!r} is no quantity: allowed are a whole number of MB, or a text of a number "
        f"and one of {', '.join(_FACTORS)}"
    )


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
    """Resources requested for one job; None or an absent kind: the platform's default."""

    #: CPUs, fractions allowed
    cpu: float | None = values.field(default=None, validator=_positive_or_none)
    #: memory in MB (2**20 bytes)
    memory: int | None = values.field(default=None, validator=_positive_or_none)
    #: devices by kind, for example ``{"gpu": 2}``; kinds are those of the resource providers
    devices: Mapping[str, int] = values.field(factory=dict, converter=_freeze, validator=_counts)

    @property
    def is_empty(self) -> bool:
        """True where no resource is requested."""
        return self.cpu is None and self.memory is None and not any(self.devices.values())


@values.frozen(kw_only=True)
class Device:
    """Device that a provider's probe found on a host."""

    #: the provider's kind, for example "gpu"
    kind: str
    #: identifier in the device's own software (an NVIDIA UUID or index)
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
