"""Names that plugins offer: who offers which, names offered twice, and names that nobody offers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Generic, TypeVar

from fiber import abc
from fiber._base import light_values, values
from fiber._base.entry_points import EntryPoint
from fiber._base.known_backends import known_backends
from fiber.exceptions import (
    BackendError,
    BackendNotInstalledError,
    PluginClashError,
    PluginError,
    PluginVersionError,
    UnknownBackendError,
)
from fiber.model import BackendInfo

#: distribution of the core's own hook implementations, whose names nobody can take
CORE = "fiber-core"

_T = TypeVar("_T")


@values.frozen
class Source:
    """Where a plugin comes from."""

    #: its name: that of the entry point
    name: str
    #: its distribution
    distribution: str
    #: the distribution's version, empty where it is not known
    version: str = ""

    @classmethod
    def core(cls, module: str) -> Source:
        """A module of the core itself."""
        from fiber._version import __version__

        return cls(module, CORE, __version__)

    @classmethod
    def of(cls, point: Any) -> Source:
        """The distribution that an entry point belongs to."""
        point = EntryPoint.of(point)
        return cls(point.name, point.distribution, point.version)

    @classmethod
    def of_object(cls, plugin: Any) -> Source:
        """A plugin that belongs to no distribution, such as one made by a test."""
        name = getattr(plugin, "__name__", None) or type(plugin).__name__
        return cls(f"{name}-{id(plugin):x}", name)

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@values.frozen
class BrokenPlugin:
    """A plugin that cannot be used, and why."""

    #: name of its entry point
    name: str
    #: its distribution
    distribution: str
    #: the distribution's version
    version: str
    #: what went wrong
    error: BaseException

    def __str__(self) -> str:
        who = f"{self.distribution} {self.version}".strip()
        if isinstance(self.error, PluginError):
            return f"plugin {self.name!r} of {who} is not used: {self.error}"
        kind = type(self.error).__name__
        return f"plugin {self.name!r} of {who} is broken and not used: {kind}: {self.error}"


@values.frozen(kw_only=True)
class InstalledPlugin:
    """One line of ``fiber plugins``."""

    #: name of its entry point
    name: str
    #: its distribution
    distribution: str
    #: the distribution's version
    version: str
    #: backends it offers, those refused for their API version too
    backends: tuple[BackendInfo, ...] = ()
    #: kinds of devices it offers
    resources: tuple[str, ...] = ()
    #: sub-commands it offers
    commands: tuple[str, ...] = ()
    #: hooks it implements
    hooks: tuple[str, ...] = ()


class Index(Generic[_T]):
    """Who offers what under which names.

    Of two that offer the same name neither gets it, so that what is installed, and not the order
    in which it is found, decides; only the core keeps its own names.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._entries: list[tuple[Source, tuple[str, ...], _T]] = []
        self._owners: dict[str, tuple[Source, _T]] = {}
        #: the error for each name that was offered twice
        self.clashes: dict[str, PluginClashError] = {}

    def add(self, source: Source, names: Iterable[str], offer: _T) -> None:
        """Add what a plugin offers."""
        names = tuple(names)
        self._entries.append((source, names, offer))
        for name in names:
            first = self._owners.setdefault(name, (source, offer))
            if first[1] is not offer:
                self.clashes[name] = PluginClashError(
                    f"{self._what} {name!r} is offered by {first[0]} and {source}; "
                    f"uninstall one of them",
                    plugin=source.distribution,
                )

    def offers(self, source: Source | None = None) -> Iterator[_T]:
        """What is offered, by one plugin or by all, without what lost its first name."""
        for owner, names, offer in self._entries:
            if source is None and not self._holds(names[0], offer):
                continue
            if source is None or owner == source:
                yield offer

    def find(self, name: str) -> _T | None:
        """What is offered under a name, or None.

        Raises:
            PluginClashError: two offer it.
        """
        if name not in self._owners:
            return None
        source, offer = self._owners[name]
        if name in self.clashes and source.distribution != CORE:
            raise self.clashes[name]
        return offer

    def source(self, name: str) -> Source:
        """Who offers a name."""
        return self._owners[name][0]

    def _holds(self, name: str, offer: _T) -> bool:
        source, first = self._owners[name]
        return first is offer and (name not in self.clashes or source.distribution == CORE)


def check_backend(info: Any) -> tuple[str, ...]:
    """The names of a backend, its canonical one first.

    Raises:
        PluginError: it is no BackendInfo, or its names or settings cannot be used.
    """
    if not isinstance(info, BackendInfo):
        msg = f"fiber_backends must return BackendInfo objects, got {info!r}"
        raise PluginError(msg)
    for name in (info.name, *info.aliases):
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            msg = f"the backend name {name!r} must be lower-case letters, digits and hyphens"
            raise PluginError(msg)
    if info.config is not None and not (
        light_values.has(info.config) or hasattr(info.config, "__attrs_attrs__")
    ):
        msg = f"the config of backend {info.name!r} must be an attrs class, got {info.config!r}"
        raise PluginError(msg)
    return (info.name, *info.aliases)


def version_error(info: BackendInfo, source: str) -> PluginVersionError | None:
    """The error for a backend that was written for another version of the API, if it was."""
    (major, minor), (ours, ours_minor) = info.api, abc.API_VERSION
    if major == ours and minor <= ours_minor:
        return None
    newer = (major, minor) > (ours, ours_minor)
    return PluginVersionError(
        f"backend {info.name!r} of {source} was written for version {major}.{minor} of the "
        f"backend API, this fiber-core has {ours}.{ours_minor}; "
        f"upgrade {'fiber-core' if newer else source.partition(' ')[0]}",
        plugin=source,
    )


def broken_backend(name: str, broken: Iterable[BrokenPlugin]) -> PluginError | None:
    """The error for a backend whose plugin is broken, if one is that may offer it."""
    known = next((k for k in known_backends().values() if name in (k.name, *k.aliases)), None)
    for plugin in broken:
        if plugin.name == name or (known and plugin.distribution == known.distribution):
            if isinstance(plugin.error, PluginClashError):
                return plugin.error
            error = PluginError(
                f"backend {name!r} cannot be used: {plugin}", plugin=plugin.distribution
            )
            error.__cause__ = plugin.error
            return error
    return None


def unknown_backend(name: str, installed: Collection[str], origin: str = "") -> BackendError:
    """The error for a name that no installed plugin offers: known all the same, or not."""
    absent = {k.name: k for k in known_backends().values() if k.name not in installed}
    who = f"{name!r} ({origin})" if origin else repr(name)
    for known in absent.values():
        if name in (known.name, *known.aliases):
            return BackendNotInstalledError(
                f"backend {who} is known and not installed: pip install {known.distribution}"
            )
    words = [*installed, *absent, *(alias for k in absent.values() for alias in k.aliases)]
    import difflib

    close = difflib.get_close_matches(name, words, n=1, cutoff=0.5)
    text = f"unknown backend {who}: installed are {', '.join(sorted(installed)) or 'none'}"
    if absent:
        text += f"; known and not installed are {', '.join(sorted(absent))}"
    if close:
        text += f"; did you mean {close[0]!r}?"
    return UnknownBackendError(text)
