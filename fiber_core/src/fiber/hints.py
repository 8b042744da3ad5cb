"""Resource hints of functions and classes that run in a process: :func:`meta`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType
from typing import Any, TypeVar

from fiber._base import light_values, values
from fiber.model.job import ResourceRequest, megabytes

__all__ = ["Meta", "get_meta", "meta"]

_ATTRIBUTE = "__fiber_meta__"
_CORE_KEYS = ("cpu", "gpu", "image", "memory", "retry", "slots")
_T = TypeVar("_T")


def _cpu(_: Any, __: Any, value: Any) -> None:
    # few programs give one
    import numbers

    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        msg = f"cpu must be a number of CPUs, got {value!r}"
        raise TypeError(msg)
    if not float(value) > 0:
        msg = f"cpu must be positive, got {value!r}"
        raise ValueError(msg)


def _devices(_: Any, __: Any, value: Mapping[str, Any]) -> None:
    for kind, count in value.items():
        _whole(kind, count, least=0)


def _image(_: Any, __: Any, value: Any) -> None:
    if not isinstance(value, str):
        msg = f"image must be an image's name, got {value!r}"
        raise TypeError(msg)
    if not value.strip():
        msg = "image must be an image's name, got an empty text"
        raise ValueError(msg)


def _retry(_: Any, __: Any, value: Any) -> None:
    if not isinstance(value, bool):
        msg = f"retry must be True or False, got {value!r}"
        raise TypeError(msg)


def _slots(_: Any, __: Any, value: Any) -> None:
    _whole("slots", value, least=1)


def _whole(key: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{key} must be a whole number, got {value!r}"
        raise TypeError(msg)
    if value < least:
        msg = f"{key} must be at least {least}, got {value!r}"
        raise ValueError(msg)


def _copy(devices: Mapping[str, int]) -> dict[str, int]:
    return dict(devices)


def _megabytes_or_none(value: int | str | None) -> int | None:
    return None if value is None else megabytes(value)


@values.frozen(kw_only=True)
class Meta:
    """Hints of one function or class; None and absent kinds mean "not given"."""

    #: CPUs, fractions allowed
    cpu: float | None = values.field(default=None, validator=values.optional(_cpu))
    #: memory in MB
    memory: int | None = values.field(default=None, converter=_megabytes_or_none)
    #: devices by kind of resource provider
    devices: Mapping[str, int] = values.field(
        factory=dict, converter=_copy, validator=_devices, hash=False
    )
    #: image, on backends that run images
    image: str | None = values.field(default=None, validator=values.optional(_image))
    #: False for work that must not run twice
    retry: bool | None = values.field(default=None, validator=values.optional(_retry))
    #: MPI slots of one worker
    slots: int | None = values.field(default=None, validator=values.optional(_slots))

    @property
    def resources(self) -> ResourceRequest:
        """The resources that a job's platform grants."""
        return ResourceRequest(cpu=self.cpu, memory=self.memory, devices=self.devices)

    @property
    def asks(self) -> bool:
        """True where it needs workers with certain resources or an image."""
        needs = self.cpu, self.memory, self.image
        return needs != (None, None, None) or any(self.devices.values())

    def merged(self, over: Meta) -> Meta:
        """These hints, overridden by those that ``over`` gives."""
        if over is _NONE:
            return self
        if self is _NONE:
            return over
        given = {
            field.name: value
            for field in light_values.fields(Meta)
            if (value := getattr(over, field.name)) is not None
        }
        given["devices"] = {**self.devices, **over.devices}
        return values.evolve(self, **given)


#: the hints of most functions
_NONE = Meta()


def meta(
    *,
    cpu: float | None = None,
    memory: int | str | None = None,
    gpu: int | None = None,
    image: str | None = None,
    retry: bool | None = None,
    slots: int | None = None,
    **provider_kinds: int,
) -> Callable[[_T], _T]:
    """Decorator: resources that a function, or a class with ``run()``, needs in a process of Fiber.

    The target is returned itself, with the hints stored on it as an immutable value; they hold for
    it alone. Stacked decorators add up; where two give the same key, the outer one counts.

    Args:
        cpu: CPUs, fractions allowed.
        memory: MB (2**20 bytes), or a quantity with its unit such as ``"4Gi"``.
        gpu: GPUs; the process sees exactly the ones it got.
        image: image, on backends that run images.
        retry: False for work that must not run twice.
        slots: MPI slots of one worker.
        **provider_kinds: a number of devices for any kind that an installed resource provider
            offers.

    Raises:
        TypeError: an unknown key (the text has the known ones), a value of the wrong type, or a
            target that cannot hold hints.
        ValueError: a value out of range; the text names its key.
    """
    unknown = [kind for kind in provider_kinds if kind not in _CORE_KEYS]
    if unknown:
        _require_known(unknown)
    counts = {"gpu": gpu, **provider_kinds}
    hints = Meta(
        cpu=cpu,
        memory=memory,
        devices={kind: count for kind, count in counts.items() if count is not None},
        image=image,
        retry=retry,
        slots=slots,
    )

    def decorate(target: _T) -> _T:
        _attach(target, hints)
        return target

    return decorate


def get_meta(target: object) -> Meta:
    """The hints of a function, class, instance, bound method or partial; empty where none are.

    Where several have some, the outer one counts: a partial's own over its function's, a
    class's over those of its ``run`` method or of ``__call__``.
    """
    if type(target) is FunctionType:
        # called for each task
        return _own(target)
    if isinstance(target, functools.partial):
        return get_meta(target.func).merged(_own(target))
    if isinstance(target, (staticmethod, classmethod, MethodType)):
        return get_meta(target.__func__)
    hints = _NONE
    kind = target if isinstance(target, type) else type(target)
    for method in ("__call__", "run"):
        if isinstance(target, type) and method == "__call__":
            # calling a class makes an instance; only run() is work
            continue
        function = getattr(kind, method, None)
        if function is not None:
            hints = hints.merged(_own(function))
    return hints.merged(_own(target))


def _own(target: object) -> Meta:
    found = getattr(target, _ATTRIBUTE, None)
    # anything else is an object that answers every attribute, such as a proxy or a mock
    return found if isinstance(found, Meta) else _NONE


def _attach(target: object, hints: Meta) -> None:
    holder = target.__func__ if isinstance(target, (staticmethod, classmethod)) else target
    if isinstance(holder, MethodType) or not callable(holder):
        msg = f"meta cannot decorate {target!r}: decorate a function or a class with run()"
        raise TypeError(msg)
    if isinstance(holder, type) and not callable(getattr(holder, "run", None)):
        msg = f"meta cannot decorate the class {holder.__qualname__}: it has no run() method"
        raise TypeError(msg)
    try:
        setattr(holder, _ATTRIBUTE, _own(holder).merged(hints))
    except (AttributeError, TypeError) as error:
        msg = (
            f"meta cannot decorate {target!r}: wrap it in a function or in functools.partial first"
        )
        raise TypeError(msg) from error


def _require_known(kinds: Iterable[str]) -> None:
    installed = _installed_kinds()
    wrong = sorted(kind for kind in kinds if kind not in installed)
    if wrong:
        known = ", ".join(sorted({*_CORE_KEYS, *installed}))
        msg = (
            f"meta got an unknown key {', '.join(map(repr, wrong))}; known are {known}; "
            f"other kinds of devices come with the plugin of their resource provider"
        )
        raise TypeError(msg)


def _installed_kinds() -> frozenset[str]:
    from fiber._plugins.manager import resource_kinds

    return frozenset(resource_kinds())
