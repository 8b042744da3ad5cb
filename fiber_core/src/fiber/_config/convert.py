"""Conversion of written values to the types of a settings class, and assignment of keys to owners.

:class:`SettingsCollector` finds out whether a written key is the core's, a backend's or unknown;
:func:`build` converts and validates the values of one owner.
"""

from __future__ import annotations

import enum
import math
import re
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from fiber._base import light_values
from fiber._base.entry_points import known_backends
from fiber._base.log import lazy_logger
from fiber._config.sources import DEFAULT_SECTION, FileSettings, Origin, OriginKind, RawValue
from fiber.exceptions import ConfigError
from fiber.model import BackendInfo
from fiber.model.job import megabytes

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def settings_of(cls: type) -> dict[str, Any]:
    """Return the fields of a settings class by key, without those that are ``internal``.

    Args:
        cls: class made by attrs, as plugins do, or by :mod:`fiber._base.values`.
    """
    if light_values.has(cls):
        return {f.alias: f for f in light_values.fields(cls) if not f.metadata.get("internal")}
    # no class was made by attrs while it is not imported
    if "attrs" not in sys.modules and "attr" not in sys.modules:
        return {}
    import attrs

    if not attrs.has(cls):
        return {}
    return {
        attribute.alias or attribute.name: attribute
        for attribute in attrs.fields(cls)
        if attribute.init and not attribute.metadata.get("internal")
    }


def is_required(setting: Any) -> bool:
    """True for a field without a default."""
    if isinstance(setting, light_values.Field):
        return setting.is_required
    import attrs

    return setting.default is attrs.NOTHING


def is_true(text: str) -> bool:
    """Parse a boolean variable; False where it is neither true nor false, which whoever reads it reports."""
    try:
        return bool(convert(text, bool))
    except ValueError:
        return False


def build(
    cls: type, raws: Mapping[str, RawValue], prefix: str = "", *, complete: bool = True
) -> dict[str, Any]:
    """Convert values set for a settings class; returns arguments that its constructor accepts.

    Args:
        cls: the settings class.
        raws: values as written, by key of the class.
        prefix: put before a key in messages.
        complete: False where required values may be missing, since no instance will be made.

    Raises:
        ConfigError: a value does not fit, or a setting without default is missing.
    """
    fields = settings_of(cls)
    # to evaluate them takes a while, and as a rule nothing is set
    hints = typing.get_type_hints(cls) if raws else {}
    found: dict[str, Any] = {}
    for key, raw in raws.items():
        attribute = fields[key]
        parse = attribute.metadata.get("parse")
        try:
            hint = hints.get(attribute.name, Any)
            found[key] = parse(raw.value) if parse else convert(raw.value, hint)
        except (ValueError, TypeError) as error:
            raise _bad(prefix + key, raw, attribute, str(error)) from None
    missing = [k for k, a in fields.items() if is_required(a) and k not in found]
    if missing and not complete:
        return found
    if missing:
        names = ", ".join(prefix + key for key in missing)
        variable = f"FIBER_{prefix}{missing[0]}".upper()
        msg = f"{names} must be set, for example with the environment variable {variable}"
        raise ConfigError(msg)
    try:
        cls(**found)
    except Exception as error:
        # the cause could show a secret too
        hidden = any(fields[key].metadata.get("secret") for key in found)
        raise _rejection(cls, found, raws, prefix) from (None if hidden else error)
    return found


def _rejection(
    cls: type, found: Mapping[str, Any], raws: Mapping[str, RawValue], prefix: str
) -> ConfigError:
    """Error for values that the class rejects; names the one key that is rejected by itself."""
    fields = settings_of(cls)

    def reason_against(keys: Sequence[str]) -> str:
        try:
            cls(**{key: found[key] for key in keys})
        except Exception as error:
            return str(error.args[0]) if error.args else repr(error)
        return ""

    required = [key for key in found if is_required(fields[key])]
    if required and reason_against(required):
        guilty = required if len(required) == 1 else []
        reason = reason_against(required)
    else:
        guilty = [key for key in found if key not in required and reason_against([*required, key])]
        reason = reason_against([*required, *guilty[:1]] if guilty else list(found))
    if guilty:
        return _bad(prefix + guilty[0], raws[guilty[0]], fields[guilty[0]], reason)
    origins = ", ".join(f"{prefix}{key} ({raws[key].origin})" for key in found)
    if any(fields[key].metadata.get("secret") for key in found):
        reason = "one of them is secret, so no more is shown"
    return ConfigError(f"these values do not go together: {origins}: {reason}")


def _bad(key: str, raw: RawValue, attribute: Any, allowed: str) -> ConfigError:
    if attribute.metadata.get("secret"):
        return ConfigError(f"bad value (secret, not shown) for {key!r} ({raw.origin})")
    return ConfigError(f"bad value {raw.value!r} for {key!r} ({raw.origin}): {allowed}")


def convert(value: Any, hint: Any) -> Any:
    """Convert a value to a type.

    Args:
        value: text, or a Python value from code or TOML.
        hint: bool, int, float, str, Path, a list, tuple or frozenset of those, Literal, an Enum,
            or a union of one of them with None.

    Raises:
        ValueError: it does not fit; the text says what is allowed.
        TypeError: settings cannot have that type.
    """
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _optional(value, hint)
    if origin is Literal:
        return _literal(value, typing.get_args(hint))
    if origin in (list, tuple, frozenset) or (origin is not None and issubclass(origin, Sequence)):
        inner = [arg for arg in typing.get_args(hint) if arg is not Ellipsis]
        items = [convert(item, inner[0] if inner else str) for item in _items(value)]
        return (list if origin is list else frozenset if origin is frozenset else tuple)(items)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if isinstance(value, hint):
            return value
        by_value = {str(member.value).lower(): member for member in hint}
        return by_value[_literal(str(value).lower(), tuple(by_value))]
    if hint is Any:
        return value
    try:
        return _SCALARS[hint](value)
    except KeyError:
        msg = f"a setting cannot have the type {hint!r}"
        raise TypeError(msg) from None


def _optional(value: Any, hint: Any) -> Any:
    others = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if len(others) != 1 or len(typing.get_args(hint)) != 2:
        msg = f"a setting cannot have the type {hint!r}"
        raise TypeError(msg)
    if value is None or value == "" or (isinstance(value, str) and value.lower() == "none"):
        return None
    return convert(value, others[0])


def _literal(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if value == choice or str(value).lower() == str(choice).lower():
            return choice
    msg = f"must be one of {', '.join(map(str, choices))}"
    raise ValueError(msg)


def _items(value: Any) -> Sequence[Any]:
    """Split a list: at newlines if there are any, else at commas."""
    if isinstance(value, str):
        parts = value.splitlines() if "\n" in value else value.split(",")
        return [part.strip() for part in parts if part.strip()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    msg = "must be a list, in text separated by commas or newlines"
    raise ValueError(msg)


def _bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if isinstance(value, bool) or (isinstance(value, (str, int)) and text in _TRUE | _FALSE):
        return text in _TRUE
    msg = "must be true or false (also yes/no, on/off, 1/0)"
    raise ValueError(msg)


def _number(value: Any, kind: type, allowed: str) -> Any:
    if not isinstance(value, bool) and isinstance(value, (str, int, float)):
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            number = math.nan
        # int(2.5) succeeds, but 2.5 is no whole number
        if math.isfinite(number) and (isinstance(value, str) or number == value):
            return number
    msg = f"must be {allowed}"
    raise ValueError(msg)


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    msg = "must be text"
    raise ValueError(msg)


def _path(value: Any) -> Path:
    if isinstance(value, (str, Path)):
        return Path(value).expanduser()
    msg = "must be a path"
    raise ValueError(msg)


_SCALARS: dict[Any, Any] = {
    bool: _bool,
    int: lambda value: _number(value, int, "a whole number"),
    float: lambda value: _number(value, float, "a number"),
    str: _str,
    Path: _path,
}


def parse_memory(value: Any) -> int:
    """Parse memory, in MB (2**20 bytes): a number of MB or a Kubernetes quantity such as ``4Gi``.

    Raises:
        ValueError: it is neither, or not positive.
    """
    # numbers in files and in the environment are text
    number = isinstance(value, str) and re.fullmatch(r"\s*\d+\s*", value)
    try:
        return megabytes(int(value) if number else value)
    except (TypeError, ValueError) as error:
        msg = f"{error} (a plain number is MB)"
        raise ValueError(msg) from error


def parse_cpu(value: Any) -> float:
    """Parse CPUs: a number or a Kubernetes quantity such as ``500m``.

    Raises:
        ValueError: it is neither, or not positive.
    """
    allowed = "must be a positive number of CPUs such as 2, 0.5 or 500m"
    if isinstance(value, str) and re.fullmatch(r"\s*\d+m\s*", value):
        value = int(value.strip()[:-1]) / 1000
    try:
        cpus: float = _number(value, float, "")
    except ValueError:
        raise ValueError(allowed) from None
    if cpus <= 0:
        raise ValueError(allowed)
    return cpus


def render(value: Any) -> str:
    """Format a value as text that :func:`convert` reads back, for the environment of a job."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return render(value.value)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [render(item) for item in value]
        # the newline at the end keeps a single item with a comma one item
        return "\n".join([*items, ""]) if any("," in item for item in items) else ",".join(items)
    return "" if value is None else str(value)


#: variables that Fiber sets for its own processes; not settings
INTERNAL_VARIABLES = frozenset(
    {
        "FIBER_BOOTSTRAP",
        "FIBER_GRACE",
        "FIBER_GRANTED_DEVICES",
        "FIBER_MPI_DIR",
        "FIBER_MPI_DOOR",
        "FIBER_MPI_MEMBER",
        "FIBER_REACH",
        "FIBER_REQUIRE",
        "FIBER_RUN",
    }
)

_VARIABLE = "FIBER_"
_log = lazy_logger("fiber.config")


def key_prefix(backend: str) -> str:
    """Prefix of a backend's keys in code and, in capitals, in variables."""
    return backend.replace("-", "_") + "_"


class SettingsCollector:
    """Collects written values by owner (the core or a backend); values added later win.

    Args:
        core: the core's own keys.
        backends: installed backends.
        selected: the chosen backend, or None while it is not known yet. Until then only the
            core's keys are used, and unknown ones are not reported.
    """

    def __init__(
        self, core: Collection[str], backends: Iterable[BackendInfo], selected: BackendInfo | None
    ) -> None:
        owners = {info.name: info for info in backends}
        if selected is not None:
            owners[selected.name] = selected
        #: values by key, by owner: "" for the core, else the backend's name
        self.by_owner: dict[str, dict[str, RawValue]] = {name: {} for name in ("", *owners)}
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
        """Add the values of a configuration file.

        Raises:
            ConfigError: it has an unknown key or section.
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
        """Add the ``FIBER_…`` variables; an unknown one is logged as a warning.

        Another program may have set it: a Kubernetes Service named ``fiber`` gives every pod of
        its namespace a ``FIBER_PORT``.
        """
        for variable, value in environ.items():
            if not variable.startswith(_VARIABLE) or variable in INTERNAL_VARIABLES or not value:
                continue
            key = variable.removeprefix(_VARIABLE).lower()
            raw = RawValue(value, Origin(OriginKind.ENVIRONMENT, variable))
            owner = self._owner(key)
            if key in self._core:
                self.by_owner[""][key] = raw
            elif self._selected is None or (owner is not None and owner != self._selected.name):
                continue
            elif owner is not None and key.removeprefix(key_prefix(owner)) in self._fields[owner]:
                self.by_owner[owner][key.removeprefix(key_prefix(owner))] = raw
            else:
                nearest = _nearest(variable, [_VARIABLE + name.upper() for name in self._keys()])
                _log.warning(
                    "fiber: %s is no setting of fiber, ignored (nearest: %s)", variable, nearest
                )

    def add_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Add the keyword arguments of ``fiber.init``; None is not set.

        Raises:
            ConfigError: one has an unknown name.
        """
        for key, value in arguments.items():
            if value is not None:
                self._add(key, RawValue(value, Origin(OriginKind.ARGUMENT, key)))

    def _add(self, key: str, raw: RawValue) -> None:
        if key in self._core:
            self.by_owner[""][key] = raw
            return
        owner = self._owner(key)
        if owner in self._fields:
            self._add_to(owner, key.removeprefix(key_prefix(owner)), raw)
        elif owner is None and self._selected is not None:
            raise _unknown(key, raw.origin, self._keys())

    def _add_to(self, backend: str, key: str, raw: RawValue) -> None:
        if key in self._fields[backend]:
            self.by_owner[backend][key] = raw
        elif self._selected is not None:
            prefix = key_prefix(backend)
            allowed = [prefix + name for name in self._fields[backend]]
            raise _unknown(prefix + key, raw.origin, allowed)

    def _owner(self, key: str) -> str | None:
        """Return the backend, installed or published, to which a key belongs by its prefix."""
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


def host_and_port(address: str, use: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        ConfigError: it is no such address; ``use`` says what it is for.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        msg = f"{use}, and not at {address!r}"
        raise ConfigError(msg)
    return host.strip("[]"), int(port)
