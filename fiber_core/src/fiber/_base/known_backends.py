"""Published backends, known by name without being installed; read from a data file."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fiber._base import values

__all__ = ["KnownBackend", "known_backends"]


@values.frozen(kw_only=True)
class KnownBackend:
    """A published backend."""

    #: canonical name
    name: str
    #: distribution to install
    distribution: str
    #: other accepted names
    aliases: tuple[str, ...] = values.field(default=(), converter=tuple)


@functools.cache
def known_backends() -> Mapping[str, KnownBackend]:
    """Return the published backends by canonical name."""
    text = Path(__file__).with_name("known_backends.json").read_text(encoding="utf-8")
    return MappingProxyType(
        {name: KnownBackend(name=name, **fields) for name, fields in json.loads(text).items()}
    )
