"""Plugins: loaded one by one, so that a broken one breaks no other, and looked up by name.

Names that plugins offer: who offers which, names offered twice, and names that nobody offers.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

from fiber import abc, hookspecs
from fiber._base import entry_points as distributions
from fiber._base import light_values, values
from fiber._base.entry_points import EntryPoint
from fiber._base.known_backends import known_backends
from fiber.abc import ResourceProvider
from fiber.exceptions import (
    BackendError,
    BackendNotInstalledError,
    PluginClashError,
    PluginError,
    PluginVersionError,
    ResourceError,
    UnknownBackendError,
)
from fiber.hookspecs import PROJECT
from fiber.model import BackendInfo

if TYPE_CHECKING:
    import click

    from fiber.exceptions import PluginVersionError

__all__ = ["BrokenPlugin", "InstalledPlugin", "Plugins", "load_plugins", "resource_kinds"]

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


#: modules of the core that answer hooks as a plugin does
_BUILT_IN = (
    "fiber._plugins.defaults",
    "fiber._agent.resources.plugin",
    "fiber._ring.frameworks.plugin",
)

_log = logging.getLogger("fiber.plugins")


def load_plugins(
    *,
    entry_points: Iterable[Any] | None = None,
    extra: Iterable[Any] = (),
) -> Plugins:
    """Load the plugins.

    One that cannot be loaded is in :attr:`Plugins.broken` afterwards, and does no harm otherwise.

    Args:
        entry_points: what to load, as :mod:`fiber._base.entry_points` or ``importlib.metadata`` has it; by
            default all entry points of the group ``fiber``.
        extra: more plugins: modules or objects with hook implementations.
    """
    plugins = Plugins()
    for name in _BUILT_IN:
        plugins.register(importlib.import_module(name), Source.core(name))
    found = (
        distributions.entry_points(PROJECT)
        if entry_points is None
        else map(EntryPoint.of, entry_points)
    )
    by_name: dict[str, dict[tuple[Source, str], EntryPoint]] = {}
    for point in found:
        by_name.setdefault(point.name, {})[Source.of(point), point.value] = point
    for name, points in by_name.items():
        if len(points) > 1:
            plugins.refuse(name, [source for source, _ in points])
            continue
        for (source, _), point in points.items():
            plugins.load(point, source)
    for plugin in extra:
        plugins.register(plugin, Source.of_object(plugin))
    return plugins


@functools.cache
def _installed() -> Plugins:
    return load_plugins()


def resource_kinds() -> tuple[str, ...]:
    """The kinds of devices that installed resource providers offer, sorted."""
    return tuple(sorted(_installed().providers()))


class Plugins:
    """The loaded plugins and what they offer; safe to use from any thread."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._sources: dict[str, Source] = {}
        self._broken: dict[tuple[Source, str], BrokenPlugin] = {}
        self._clashes: list[PluginClashError] = []
        #: what was asked of the plugins once and is remembered, each under its hook
        self._indexes: dict[str, Index[Any]] = {}
        self._lock = threading.RLock()

    @property
    def hook(self) -> pluggy.HookRelay:
        """The hooks, for calls where one answer counts and an error is the caller's."""
        return self._manager.hook

    @property
    def broken(self) -> tuple[BrokenPlugin, ...]:
        """Plugins that could not be loaded, or failed when they were asked what they offer."""
        self._all_indexes()
        return tuple(self._broken.values())

    @property
    def clashes(self) -> tuple[PluginClashError, ...]:
        """Names that are offered twice; nobody gets such a name, save the core its own."""
        found = list(self._clashes)
        for index in self._all_indexes():
            found.extend(index.clashes.values())
        return tuple(found)

    def load(self, point: EntryPoint, source: Source) -> None:
        """Import the plugin that an entry point names, and register it."""
        try:
            plugin = point.load()
        except (Exception, SystemExit) as error:
            self._break(source, "import", error)
        else:
            self.register(plugin, source)

    def register(self, plugin: Any, source: Source) -> None:
        """Register a plugin; wrong hook implementations make it a broken one."""
        try:
            self._manager.register(plugin, name=source.name)
            self._sources[source.name] = source
            self._manager.check_pending()
        except Exception as error:
            if self._sources.pop(source.name, None) or self._manager.get_plugin(source.name):
                self._manager.unregister(name=source.name)
            self._break(source, "register", error)

    def refuse(self, name: str, sources: Iterable[Source]) -> None:
        """Load none of the plugins that want the same entry-point name."""
        sources = list(sources)
        error = PluginClashError(
            f"the entry point {name!r} is offered by {' and '.join(map(str, sources))}; "
            f"uninstall one of them",
            plugin=sources[-1].distribution,
        )
        self._clashes.append(error)
        for source in sources:
            self._break(source, "import", error)

    def backends(self) -> Mapping[str, BackendInfo]:
        """The usable backends by canonical name."""
        index = self._backend_index()
        return MappingProxyType(
            {
                info.name: info
                for info in index.offers()
                if info.name not in index.clashes and version_error(info, "") is None
            }
        )

    def find_backend(self, name: str, *, origin: str = "") -> BackendInfo:
        """The backend of a canonical name or alias.

        Args:
            name: the name.
            origin: where it was set, for the message where nobody offers it.

        Raises:
            PluginClashError: two distributions offer that name.
            PluginVersionError: it was written for another version of the backend API.
            PluginError: its plugin is broken.
            BackendNotInstalledError: it is known, and not installed.
            UnknownBackendError: nobody knows it.
        """
        wanted, index = name.strip().lower(), self._backend_index()
        info: BackendInfo | None = index.find(wanted)
        if info is None:
            failed = broken_backend(wanted, self.broken)
            raise failed or unknown_backend(wanted, self.backends(), origin)
        error = version_error(info, str(index.source(wanted)))
        if error is not None:
            raise error
        return info

    def source(self, backend: str) -> Source:
        """The distribution that offers a backend."""
        return self._backend_index().source(backend)

    def refused(self) -> Mapping[str, PluginVersionError]:
        """Backends written for another version of the API, with the reason, by name."""
        index = self._backend_index()
        errors = {i.name: version_error(i, str(index.source(i.name))) for i in index.offers()}
        return {name: error for name, error in errors.items() if error is not None}

    def providers(self) -> Mapping[str, ResourceProvider]:
        """The resource providers by kind."""
        index = self._provider_index()
        return MappingProxyType({provider.kind: provider for provider in index.offers()})

    def find_provider(self, kind: str) -> ResourceProvider:
        """The resource provider of a kind.

        Raises:
            PluginClashError: two distributions offer that kind.
            ResourceError: nobody does; the text has the installed ones.
        """
        found: ResourceProvider | None = self._provider_index().find(kind)
        if found is None:
            known = ", ".join(sorted(self.providers())) or "none"
            msg = f"no resource provider for {kind!r} is installed; installed are {known}"
            raise ResourceError(msg)
        return found

    def commands(self) -> Mapping[str, click.Command]:
        """The sub-commands that plugins add to the ``fiber`` command, by name."""
        index = self._command_index()
        return MappingProxyType({str(command.name): command for command in index.offers()})

    def find_command(self, name: str) -> click.Command | None:
        """The sub-command of a name, or None where no plugin adds one.

        Raises:
            PluginClashError: two distributions add one of that name.
        """
        found: click.Command | None = self._command_index().find(name)
        return found

    def distributions(self) -> tuple[InstalledPlugin, ...]:
        """The loaded plugins and what each offers, in the order in which they were loaded."""
        backends, providers = self._backend_index(), self._provider_index()
        commands = self._command_index()
        return tuple(
            InstalledPlugin(
                name=source.name,
                distribution=source.distribution,
                version=source.version,
                backends=tuple(backends.offers(source)),
                resources=tuple(provider.kind for provider in providers.offers(source)),
                commands=tuple(str(command.name) for command in commands.offers(source)),
                hooks=tuple(sorted(self._hooks_of(source))),
            )
            for source in self._sources.values()
        )

    def answers(self, hook: str, **arguments: Any) -> Iterator[tuple[Source, Any]]:
        """Ask every plugin by itself; one that raises is logged as broken, and has no answer."""
        caller = getattr(self._manager.hook, hook)
        implementing = {implementation.plugin_name for implementation in caller.get_hookimpls()}
        if not implementing:
            return
        everyone = dict(self._manager.list_name_plugin())
        for name, source in list(self._sources.items()):
            if name not in implementing:
                continue
            others = [plugin for other, plugin in everyone.items() if other != name]
            try:
                answers = list(self._manager.subset_hook_caller(hook, others)(**arguments))
            except (Exception, SystemExit) as error:
                self._break(source, hook, error)
                continue
            for answer in answers:
                yield source, answer

    def notify(self, hook: str, **arguments: Any) -> None:
        """Announce an event to every plugin; errors are logged, never propagated."""
        for _ in self.answers(hook, **arguments):
            pass

    def report(self, source: Source, hook: str, error: Exception) -> None:
        """Note that what a plugin answered makes no sense."""
        self._break(source, hook, error)

    def _break(self, source: Source, what: str, error: BaseException) -> None:
        if (source, what) not in self._broken:
            broken = BrokenPlugin(source.name, source.distribution, source.version, error)
            self._broken[source, what] = broken
            _log.warning("%s", broken)
            _log.debug("%s failed at %s", source, what, exc_info=error)

    def _hooks_of(self, source: Source) -> list[str]:
        plugin = self._manager.get_plugin(source.name)
        return [caller.name for caller in self._manager.get_hookcallers(plugin) or ()]

    def _all_indexes(self) -> tuple[Index[Any], ...]:
        return self._backend_index(), self._provider_index(), self._command_index()

    def _backend_index(self) -> Index[BackendInfo]:
        return self._index("fiber_backends", "the backend name", check_backend)

    def _provider_index(self) -> Index[ResourceProvider]:
        return self._index("fiber_resource_providers", "the resource kind", _check_provider)

    def _command_index(self) -> Index[click.Command]:
        return self._index("fiber_commands", "the command", _check_command)

    def _index(self, hook: str, what: str, check: Any) -> Index[Any]:
        with self._lock:
            if hook not in self._indexes:
                index: Index[Any] = Index(what)
                for source, offers in self.answers(hook):
                    try:
                        named = [(check(offer), offer) for offer in offers]
                    except Exception as error:
                        self._break(source, hook, error)
                        continue
                    for names, offer in named:
                        index.add(source, names, offer)
                self._indexes[hook] = index
            return self._indexes[hook]


def _check_provider(provider: Any) -> tuple[str, ...]:
    if not isinstance(provider, ResourceProvider):
        msg = f"fiber_resource_providers must return ResourceProvider objects, got {provider!r}"
        raise PluginError(msg)
    return (provider.kind,)


def _check_command(command: Any) -> tuple[str, ...]:
    name = getattr(command, "name", None)
    if not isinstance(name, str) or not name:
        msg = f"fiber_commands must return click commands that have a name, got {command!r}"
        raise PluginError(msg)
    return (name,)
