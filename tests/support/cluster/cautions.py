"""What the API server accepts and warns of."""

from __future__ import annotations

from collections.abc import Iterator

from .kinds import PODS, Resource
from .quantities import parse
from .store import Object

__all__ = ["cautions"]

_BYTES = ("memory", "ephemeral-storage")


def cautions(resource: Resource, thing: Object) -> Iterator[str]:
    """The texts of an object's warnings."""
    if resource is not PODS:
        return
    name = thing["metadata"].get("name", "")
    whys = []
    if "." in name:
        whys.append("must not contain dots")
    elif len(name) > 63:
        whys.append("must be no more than 63 characters")
    if whys:
        yield (
            "metadata.name: this is used in the Pod's hostname, which can result in surprising "
            f"behavior; a DNS label is recommended: [{', '.join(whys)}]"
        )
    for number, container in enumerate(thing["spec"].get("containers") or ()):
        field = f"spec.containers[{number}]"
        seen: set[str] = set()
        for at, variable in enumerate(container.get("env") or ()):
            told = variable["name"]
            if told in seen:
                yield (
                    f'{field}.env[{at}]: hides previous definition of "{told}", which may be '
                    "dropped when using apply"
                )
            seen.add(told)
        for part in ("limits", "requests"):
            for key, value in ((container.get("resources") or {}).get(part) or {}).items():
                if key in _BYTES and parse(value).denominator != 1:
                    yield (
                        f'{field}.resources.{part}[{key}]: fractional byte value "{value}" is '
                        "invalid, must be an integer"
                    )
