"""Loading of plugins, calls of their hooks, and registries of the names that they offer.

A broken plugin harms no other, and its errors are attributed to its distribution.
"""

from __future__ import annotations

import functools
import importlib
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

from fiber import abc, hookspecs
from fiber._base import entry_points as distributions
from fiber._base import light_values, values
from fiber._base.entry_points import EntryPoint, known_backends
from fiber._base.log import lazy_logger
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


#: distribution of the core's own hook implementations, whose names no plugin can take
CORE = "fiber-core"

_T = TypeVar("_T")


@values.frozen
class Source:
    """Origin of a plugin: entry point and distribution."""

    #: name of the entry point
    name: str
    #: name of the distribution
    distribution: str
    #: the distribution's version, empty where it is not known
    version: str = ""

    @classmethod
    def core(cls, module: str) -> Source:
        """Source of a module of the core."""
        from fiber._version import __version__

        return cls(module, CORE, __version__)

    @classmethod
    def of(cls, point: Any) -> Source:
        """Source of an entry point."""
        point = EntryPoint.of(point)
        return cls(point.name, point.distribution, point.version)

    @classmethod
    def of_object(cls, plugin: Any) -> Source:
        """Source of a plugin that belongs to no distribution, such as one made by a test."""
        name = getattr(plugin, "__name__", None) or type(plugin).__name__
        return cls(f"{name}-{id(plugin):x}", name)

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@values.frozen(kw_only=True)
class BrokenPlugin(Source):
    """A plugin that is not used, with the reason."""

    #: the reason
    error: BaseException

    def __str__(self) -> str:
        source = Source.__str__(self)
        if isinstance(self.error, PluginError):
            return f"plugin {self.name!r} of {source} is not used: {self.error}"
        kind = type(self.error).__name__
        return f"plugin {self.name!r} of {source} is broken and not used: {kind}: {self.error}"


@values.frozen(kw_only=True)
class InstalledPlugin(Source):
    """A loaded plugin with what it offers: a line of ``fiber plugins``."""

    #: backends it offers, those for another API version too
    backends: tuple[BackendInfo, ...] = ()
    #: kinds of devices it offers
    resources: tuple[str, ...] = ()
    #: sub-commands it offers
    commands: tuple[str, ...] = ()
    #: hooks it implements
    hooks: tuple[str, ...] = ()


class Registry(Generic[_T]):
    """Objects of one kind that plugins offer, by name.

    A name that two plugins offer is usable from neither, so that the order in which they are found
    decides nothing; only the core keeps its own names.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: list[tuple[Source, tuple[str, ...], _T]] = []
        self._owners: dict[str, tuple[Source, _T]] = {}
        #: the error for each name that is offered twice
        self.clashes: dict[str, PluginClashError] = {}

    def add(self, source: Source, names: Iterable[str], offer: _T) -> None:
        """Add an object that a plugin offers under some names, the canonical one first."""
        names = tuple(names)
        self._entries.append((source, names, offer))
        for name in names:
            first = self._owners.setdefault(name, (source, offer))
            if first[1] is not offer:
                self.clashes[name] = PluginClashError(
                    f"{self._kind} {name!r} is offered by {first[0]} and {source}; "
                    f"uninstall one of them",
                    plugin=source.distribution,
                )

    def offers(self, source: Source | None = None) -> Iterator[_T]:
        """Yield the objects of one plugin; or of all, without those whose first name clashes."""
        for owner, names, offer in self._entries:
            if source is None and not self._holds(names[0], offer):
                continue
            if source is None or owner == source:
                yield offer

    def find(self, name: str) -> _T | None:
        """Return the object of a name, or None.

        Raises:
            PluginClashError: two plugins offer it.
        """
        if name not in self._owners:
            return None
        source, offer = self._owners[name]
        if name in self.clashes and source.distribution != CORE:
            raise self.clashes[name]
        return offer

    def source(self, name: str) -> Source:
        """Return the source of a name's plugin."""
        return self._owners[name][0]

    def _holds(self, name: str, offer: _T) -> bool:
        source, first = self._owners[name]
        return first is offer and (name not in self.clashes or source.distribution == CORE)


def check_backend(info: Any) -> tuple[str, ...]:
    """Check a backend's description; returns its names, the canonical one first.

    Raises:
        PluginError: it is no BackendInfo, or has invalid names or an invalid settings class.
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
    """Error for a backend that was written for an incompatible version of the API, else None."""
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
    """Error for a backend whose plugin is broken, else None."""
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
    """Error for a name that no installed plugin offers: not installed, or unknown."""
    absent = {k.name: k for k in known_backends().values() if k.name not in installed}
    shown = f"{name!r} ({origin})" if origin else repr(name)
    for known in absent.values():
        if name in (known.name, *known.aliases):
            return BackendNotInstalledError(
                f"backend {shown} is known and not installed: pip install {known.distribution}"
            )
    names = [*installed, *absent, *(alias for k in absent.values() for alias in k.aliases)]
    import difflib

    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    text = f"unknown backend {shown}: installed are {', '.join(sorted(installed)) or 'none'}"
    if absent:
        text += f"; known and not installed are {', '.join(sorted(absent))}"
    if close:
        text += f"; did you mean {close[0]!r}?"
    return UnknownBackendError(text)


#: the core's own hook implementations, registered like a plugin
_BUILT_IN = "fiber._plugins"

_log = lazy_logger("fiber.plugins")


def load_plugins(
    *,
    entry_points: Iterable[Any] | None = None,
    extra: Iterable[Any] = (),
) -> Plugins:
    """Load the core's own plugins and the installed ones.

    Plugins that cannot be loaded are in :attr:`Plugins.broken` afterwards.

    Args:
        entry_points: entry points to load, of :mod:`fiber._base.entry_points` or of
            ``importlib.metadata``; by default all of the group ``fiber``.
        extra: more plugins: modules or objects with hook implementations.
    """
    plugins = Plugins()
    plugins.register(importlib.import_module(_BUILT_IN), Source.core(_BUILT_IN))
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
            plugins.block_clash(name, [source for source, _ in points])
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
    """Return the kinds of devices that installed resource providers offer, sorted."""
    return tuple(sorted(_installed().providers()))


class Plugins:
    """Manager of the loaded plugins and registries of what they offer; thread-safe."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._sources: dict[str, Source] = {}
        self._broken: dict[tuple[Source, str], BrokenPlugin] = {}
        self._clashes: list[PluginClashError] = []
        #: registries by the hook that filled them; each hook is called once
        self._registries: dict[str, Registry[Any]] = {}
        self._lock = threading.RLock()

    @property
    def hook(self) -> pluggy.HookRelay:
        """Pluggy's hook relay, for calls of ``firstresult`` hooks whose errors the caller handles."""
        return self._manager.hook

    @property
    def broken(self) -> tuple[BrokenPlugin, ...]:
        """Plugins that could not be loaded, or whose hooks raised or returned invalid values."""
        self._all_registries()
        return tuple(self._broken.values())

    @property
    def clashes(self) -> tuple[PluginClashError, ...]:
        """Errors for names that are offered twice; such a name is unusable, save the core's own."""
        found = list(self._clashes)
        for registry in self._all_registries():
            found.extend(registry.clashes.values())
        return tuple(found)

    def load(self, point: EntryPoint, source: Source) -> None:
        """Import the plugin of an entry point and register it."""
        try:
            plugin = point.load()
        except (Exception, SystemExit) as error:
            self.mark_broken(source, "import", error)
        else:
            self.register(plugin, source)

    def register(self, plugin: Any, source: Source) -> None:
        """Register a plugin; one with invalid hook implementations is marked broken."""
        try:
            self._manager.register(plugin, name=source.name)
            self._sources[source.name] = source
            self._manager.check_pending()
        except Exception as error:
            if self._sources.pop(source.name, None) or self._manager.get_plugin(source.name):
                self._manager.unregister(name=source.name)
            self.mark_broken(source, "register", error)

    def block_clash(self, name: str, sources: Iterable[Source]) -> None:
        """Mark all plugins of an entry-point name broken, where several distributions have it."""
        sources = list(sources)
        error = PluginClashError(
            f"the entry point {name!r} is offered by {' and '.join(map(str, sources))}; "
            f"uninstall one of them",
            plugin=sources[-1].distribution,
        )
        self._clashes.append(error)
        for source in sources:
            self.mark_broken(source, "import", error)

    def backends(self) -> Mapping[str, BackendInfo]:
        """Return the usable backends by canonical name."""
        registry = self._backend_registry()
        return MappingProxyType(
            {
                info.name: info
                for info in registry.offers()
                if info.name not in registry.clashes and version_error(info, "") is None
            }
        )

    def find_backend(self, name: str, *, origin: str = "") -> BackendInfo:
        """Return the backend of a canonical name or alias.

        Args:
            name: the name; case does not matter.
            origin: where it was set, for the message where no plugin offers it.

        Raises:
            PluginClashError: two distributions offer that name.
            PluginVersionError: it was written for another version of the backend API.
            PluginError: its plugin is broken.
            BackendNotInstalledError: it is published, but not installed.
            UnknownBackendError: no plugin or published backend has that name.
        """
        key, registry = name.strip().lower(), self._backend_registry()
        info: BackendInfo | None = registry.find(key)
        if info is None:
            failed = broken_backend(key, self.broken)
            raise failed or unknown_backend(key, self.backends(), origin)
        error = version_error(info, str(registry.source(key)))
        if error is not None:
            raise error
        return info

    def source(self, backend: str) -> Source:
        """Return the source of a backend's plugin."""
        return self._backend_registry().source(backend)

    def incompatible_backends(self) -> Mapping[str, PluginVersionError]:
        """Return the errors of backends written for another version of the API, by name."""
        registry = self._backend_registry()
        errors = {i.name: version_error(i, str(registry.source(i.name))) for i in registry.offers()}
        return {name: error for name, error in errors.items() if error is not None}

    def providers(self) -> Mapping[str, ResourceProvider]:
        """Return the resource providers by kind."""
        registry = self._provider_registry()
        return MappingProxyType({provider.kind: provider for provider in registry.offers()})

    def lazy_providers(self) -> Mapping[str, ResourceProvider]:
        """Return the resource providers by kind, which are made when first looked at."""
        return _LazyProviders(self)

    def find_provider(self, kind: str) -> ResourceProvider:
        """Return the resource provider of a kind.

        Raises:
            PluginClashError: two distributions offer that kind.
            ResourceError: no plugin does; the text names the installed ones.
        """
        found: ResourceProvider | None = self._provider_registry().find(kind)
        if found is None:
            known = ", ".join(sorted(self.providers())) or "none"
            msg = f"no resource provider for {kind!r} is installed; installed are {known}"
            raise ResourceError(msg)
        return found

    def commands(self) -> Mapping[str, click.Command]:
        """Return the sub-commands that plugins add to the ``fiber`` command, by name."""
        registry = self._command_registry()
        return MappingProxyType({str(command.name): command for command in registry.offers()})

    def find_command(self, name: str) -> click.Command | None:
        """Return the sub-command of a name, or None where no plugin adds one.

        Raises:
            PluginClashError: two distributions add one of that name.
        """
        found: click.Command | None = self._command_registry().find(name)
        return found

    def distributions(self) -> tuple[InstalledPlugin, ...]:
        """Return the loaded plugins with what each offers, in the order of loading."""
        backends, providers = self._backend_registry(), self._provider_registry()
        commands = self._command_registry()
        return tuple(
            InstalledPlugin(
                **values.asdict(source),
                backends=tuple(backends.offers(source)),
                resources=tuple(provider.kind for provider in providers.offers(source)),
                commands=tuple(str(command.name) for command in commands.offers(source)),
                hooks=tuple(sorted(self._hooks_of(source))),
            )
            for source in self._sources.values()
        )

    def call_each(self, hook: str, **arguments: Any) -> Iterator[tuple[Source, Any]]:
        """Call a hook of each plugin by itself; yields its results with their source.

        A plugin that raises is marked broken and yields nothing.
        """
        caller = getattr(self._manager.hook, hook)
        implementing = {implementation.plugin_name for implementation in caller.get_hookimpls()}
        if not implementing:
            return
        registered = dict(self._manager.list_name_plugin())
        for name, source in list(self._sources.items()):
            if name not in implementing:
                continue
            others = [plugin for other, plugin in registered.items() if other != name]
            try:
                answers = list(self._manager.subset_hook_caller(hook, others)(**arguments))
            except (Exception, SystemExit) as error:
                self.mark_broken(source, hook, error)
                continue
            for answer in answers:
                yield source, answer

    def notify(self, hook: str, **arguments: Any) -> None:
        """Announce an event to every plugin; errors are logged, never propagated."""
        for _ in self.call_each(hook, **arguments):
            pass

    def mark_broken(self, source: Source, step: str, error: BaseException) -> None:
        """Record and log, once for each step, that a plugin is broken.

        Args:
            source: the plugin's source.
            step: ``import``, ``register``, or the hook that raised or returned an invalid value.
            error: the reason.
        """
        if (source, step) not in self._broken:
            broken = BrokenPlugin(**values.asdict(source), error=error)
            self._broken[source, step] = broken
            _log.warning("fiber: %s", broken)
            _log.debug("%s failed at %s", source, step, exc_info=error)

    def _hooks_of(self, source: Source) -> list[str]:
        plugin = self._manager.get_plugin(source.name)
        return [caller.name for caller in self._manager.get_hookcallers(plugin) or ()]

    def _all_registries(self) -> tuple[Registry[Any], ...]:
        return self._backend_registry(), self._provider_registry(), self._command_registry()

    def _backend_registry(self) -> Registry[BackendInfo]:
        return self._registry("fiber_backends", "the backend name", check_backend)

    def _provider_registry(self) -> Registry[ResourceProvider]:
        return self._registry("fiber_resource_providers", "the resource kind", _check_provider)

    def _command_registry(self) -> Registry[click.Command]:
        return self._registry("fiber_commands", "the command", _check_command)

    def _registry(self, hook: str, kind: str, check: Any) -> Registry[Any]:
        with self._lock:
            if hook not in self._registries:
                registry: Registry[Any] = Registry(kind)
                for source, offers in self.call_each(hook):
                    try:
                        named = [(check(offer), offer) for offer in offers]
                    except Exception as error:
                        self.mark_broken(source, hook, error)
                        continue
                    for names, offer in named:
                        registry.add(source, names, offer)
                self._registries[hook] = registry
            return self._registries[hook]


class _LazyProviders(Mapping[str, ResourceProvider]):
    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins

    def __getitem__(self, kind: str) -> ResourceProvider:
        return self._plugins.providers()[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plugins.providers())

    def __len__(self) -> int:
        return len(self._plugins.providers())


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
