"""Backends that are known by name without being installed, read from a data file."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping
from types import MappingProxyType

import attrs

__all__ = ["KnownBackend", "known_backends"]


@attrs.frozen(kw_only=True)
class KnownBackend:
    """A backend that somebody publishes."""

    #: canonical name
    name: str
    #: what to install
    distribution: str
    #: other accepted names
    aliases: tuple[str, ...] = attrs.field(default=(), converter=tuple)


@functools.cache
def known_backends() -> Mapping[str, KnownBackend]:
    """The known backends by canonical name."""
    text = importlib.resources.files("fiber").joinpath("known_backends.json").read_text("utf-8")
    return MappingProxyType(
        {name: KnownBackend(name=name, **fields) for name, fields in json.loads(text).items()}
    )
