"""Which setting a written key means: the core's, a backend's, or nobody's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fiber._base.known_backends import known_backends
from fiber._config.convert import settings_of
from fiber._config.sources import DEFAULT_SECTION, FileSettings, Origin, OriginKind, Raw
from fiber.exceptions import ConfigError
from fiber.model import BackendInfo

__all__ = ["INTERNAL_VARIABLES", "Placer", "key_prefix"]

#: variables of Fiber's own that are no settings
INTERNAL_VARIABLES = frozenset(
    {
        "FIBER_BOOTSTRAP",
        "FIBER_GRACE",
        "FIBER_MPI_DIR",
        "FIBER_MPI_DOOR",
        "FIBER_MPI_MEMBER",
        "FIBER_REACH",
        "FIBER_REQUIRE",
    }
)

_VARIABLE = "FIBER_"
_log = logging.getLogger("fiber.config")


def key_prefix(backend: str) -> str:
    """What the keys of a backend begin with in code and, in capitals, in variables."""
    return backend.replace("-", "_") + "_"


class Placer:
    """Collects written values by owner; what is added later wins.

    Args:
        core: the core's own keys.
        backends: installed backends.
        selected: the chosen backend, or None while it is not known yet. Until then only the
            core's keys are looked at, since nobody can tell yet to whom the others belong.
    """

    def __init__(
        self, core: Collection[str], backends: Iterable[BackendInfo], selected: BackendInfo | None
    ) -> None:
        owners = {info.name: info for info in backends}
        if selected is not None:
            owners[selected.name] = selected
        #: values by key, of the core under "" and of each backend under its name
        self.found: dict[str, dict[str, Raw]] = {name: {} for name in ("", *owners)}
        self._core = tuple(sorted(core))
        self._selected = selected
        # a longer name first, so that "a-b" gets "a_b_key" where a backend "a" exists too
        self._fields = {
            name: tuple(settings_of(owners[name].config or object))
            for name in sorted(owners, key=len, reverse=True)
        }
        self._aliases = {alias: info.name for info in owners.values() for alias in info.aliases}
        self._foreign = set(known_backends()) - set(owners)
        for known in known_backends().values():
            for alias in known.aliases:
                self._aliases.setdefault(alias, known.name)

    def add_file(self, file: FileSettings) -> None:
        """Add what a configuration file says.

        Raises:
            ConfigError: it has a key or section that nobody knows.
        """
        for section, values in file.sections.items():
            if section == DEFAULT_SECTION:
                for key, raw in values.items():
                    self._add(key, raw)
            elif section in self._fields:
                for key, raw in values.items():
                    self._add_to(section, key, raw)
            elif section not in self._foreign and self._selected is not None:
                raise self._unknown_section(section, file.origins[section])

    def add_environ(self, environ: Mapping[str, str]) -> None:
        """Add the ``FIBER_…`` variables; one that nobody knows is a warning.

        Another program may have set it: a Kubernetes Service named ``fiber`` gives every pod of
        its namespace a ``FIBER_PORT``.
        """
        for variable, value in environ.items():
            if not variable.startswith(_VARIABLE) or variable in INTERNAL_VARIABLES or not value:
                continue
            key = variable.removeprefix(_VARIABLE).lower()
            raw = Raw(value, Origin(OriginKind.ENVIRONMENT, variable))
            owner = self._owner(key)
            if key in self._core:
                self.found[""][key] = raw
            elif self._selected is None or (owner is not None and owner != self._selected.name):
                continue
            elif owner is not None and key.removeprefix(key_prefix(owner)) in self._fields[owner]:
                self.found[owner][key.removeprefix(key_prefix(owner))] = raw
            else:
                nearest = _nearest(variable, [_VARIABLE + name.upper() for name in self._keys()])
                _log.warning("%s is no setting of fiber, ignored (nearest: %s)", variable, nearest)

    def add_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Add the keyword arguments of ``fiber.init``; None is not set.

        Raises:
            ConfigError: one has a name that nobody knows.
        """
        for key, value in arguments.items():
            if value is not None:
                self._add(key, Raw(value, Origin(OriginKind.ARGUMENT, key)))

    def _add(self, key: str, raw: Raw) -> None:
        if key in self._core:
            self.found[""][key] = raw
            return
        owner = self._owner(key)
        if owner in self._fields:
            self._add_to(owner, key.removeprefix(key_prefix(owner)), raw)
        elif owner is None and self._selected is not None:
            raise _unknown(key, raw.origin, self._keys())

    def _add_to(self, backend: str, key: str, raw: Raw) -> None:
        if key in self._fields[backend]:
            self.found[backend][key] = raw
        elif self._selected is not None:
            prefix = key_prefix(backend)
            allowed = [prefix + name for name in self._fields[backend]]
            raise _unknown(prefix + key, raw.origin, allowed)

    def _owner(self, key: str) -> str | None:
        """The backend, installed or only known, to which a key belongs by its prefix."""
        for name in [*self._fields, *sorted(self._foreign)]:
            if key.startswith(key_prefix(name)):
                return name
        return None

    def _keys(self) -> list[str]:
        keys = list(self._core)
        if self._selected is not None:
            name = self._selected.name
            keys += [key_prefix(name) + key for key in self._fields[name]]
        return keys

    def _unknown_section(self, section: str, origin: Origin) -> ConfigError:
        allowed = [DEFAULT_SECTION, *sorted({*self._fields, *self._foreign})]
        meant = self._aliases.get(section)
        hint = f"; did you mean [{meant or _nearest(section, allowed)}]?"
        names = ", ".join(f"[{name}]" for name in allowed)
        return ConfigError(f"unknown section [{section}] ({origin}){hint} allowed are {names}")


def _unknown(key: str, origin: Origin, allowed: Collection[str]) -> ConfigError:
    if not allowed:
        return ConfigError(f"unknown key {key!r} ({origin}): this backend has no settings")
    import difflib

    close = difflib.get_close_matches(key, allowed, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ConfigError(f"unknown key {key!r} ({origin}): {hint}allowed are {', '.join(allowed)}")


def _nearest(name: str, names: Collection[str]) -> str:
    import difflib

    return difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
