"""Choice and making of the backend: named in the settings, detected, or the default.

Also the refusal of jobs that ask for what their backend does not declare, before it is asked. Requests for CPUs and
memory are never refused: a backend that does not declare them as limits need not enforce them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fiber._base.entry_points import load_object
from fiber.abc import Backend
from fiber.exceptions import BackendError, CapabilityError, FiberError, PluginError
from fiber.model import BackendClaim, BackendContext, BackendInfo, Capabilities, JobSpec

if TYPE_CHECKING:
    from fiber._config.settings import Config
    from fiber._plugins.manager import Plugins


def load_settings(arguments: Mapping[str, object]) -> tuple[Config, Plugins, BackendInfo]:
    """Load settings and plugins, and choose the backend, at the start of a program.

    The backend's capabilities are those that it has with these settings.

    Raises:
        ConfigError: an unknown key or a bad value.
        BackendError: the named backend cannot be used.
    """
    from fiber._config.settings import find_file, load_config
    from fiber._plugins.manager import load_plugins

    plugins = load_plugins()
    installed = tuple(plugins.backends().values())
    file = find_file(arguments)
    core = load_config(arguments, backends=installed, file=file)
    info = choose_backend(plugins, core, os.environ)
    config = load_config(arguments, backend_info=info, backends=installed, file=file)
    return config, plugins, info.with_settings(config.settings)


def open_backend(plugins: Plugins, info: BackendInfo, trusted: tuple[Path, ...] = ()) -> Backend:
    """Make a backend that belongs to no run, with its own settings, to inspect its platform.

    Args:
        plugins: the loaded plugins.
        info: the backend.
        trusted: value of ``trusted_folders``, where the program has set it.
    """
    from fiber._config.settings import load_config

    installed = tuple(plugins.backends().values())
    arguments = {"trusted_folders": trusted or None}
    config = load_config(arguments, backend_info=info, backends=installed)
    context = BackendContext(config=config.settings, providers=plugins.providers())
    return load_backend(plugins, info.name, context)


def choose_backend(
    plugins: Plugins, config: Config, environ: Mapping[str, str] | None = None
) -> BackendInfo:
    """Choose the backend: the one named in the settings, else detected, else the default.

    Args:
        plugins: the loaded plugins.
        config: the settings, which may name a backend.
        environ: environment passed to detection; this process's by default.

    Raises:
        BackendError: the named one cannot be used (see :meth:`Plugins.find_backend`); several were
            detected; or none is named, detected or the default.
    """
    if config.backend is not None:
        return plugins.find_backend(config.backend, origin=str(config.origin("backend")))
    detected = _detect(plugins, os.environ if environ is None else environ)
    if len(detected) > 1:
        claims = " and ".join(
            f"{name!r} ({claim.evidence})" for name, claim in sorted(detected.items())
        )
        msg = f"this process is claimed by {claims}; choose one with FIBER_BACKEND"
        raise BackendError(msg)
    for name in detected:
        return plugins.find_backend(name)
    return _default(plugins)


def load_backend(plugins: Plugins, name: str, context: BackendContext) -> Backend:
    """Make a backend.

    Args:
        plugins: the loaded plugins.
        name: its canonical name or an alias.
        context: passed to the backend.

    Raises:
        BackendError: there is none of that name, see :meth:`Plugins.find_backend`; or its own
            error, such as BackendUnavailableError.
        PluginError: it cannot be made; the text names its distribution.
    """
    info = plugins.find_backend(name)
    source = plugins.source(info.name)
    try:
        load = load_object(info.load) if isinstance(info.load, str) else info.load
        backend: object = load(context)
    except FiberError:
        raise
    except Exception as error:
        fix = f"; pip install --force-reinstall {source.distribution}"
        msg = (
            f"backend {info.name!r} of {source} cannot be loaded: {type(error).__name__}: {error}"
            f"{fix if isinstance(error, ImportError) else ''}"
        )
        raise PluginError(msg, plugin=source.distribution) from error
    if not isinstance(backend, Backend) or backend.name != info.name:
        made = getattr(backend, "name", backend)
        msg = f"backend {info.name!r} of {source} made {made!r} in place of a backend of that name"
        raise PluginError(msg, plugin=source.distribution)
    return backend


def _detect(plugins: Plugins, environ: Mapping[str, str]) -> dict[str, BackendClaim]:
    found: dict[str, BackendClaim] = {}
    for source, claim in plugins.call_each("fiber_detect_backend", environ=environ):
        if not isinstance(claim, BackendClaim) or claim.name not in plugins.backends():
            error = PluginError(
                f"fiber_detect_backend must claim a backend that is offered, got {claim!r}",
                plugin=source.distribution,
            )
            plugins.mark_broken(source, "fiber_detect_backend", error)
            continue
        found.setdefault(claim.name, claim)
    return found


def _default(plugins: Plugins) -> BackendInfo:
    defaults = [info for info in plugins.backends().values() if info.default]
    if len(defaults) == 1:
        return defaults[0]
    if defaults:
        names = " and ".join(f"{info.name!r} of {plugins.source(info.name)}" for info in defaults)
        msg = f"several backends want to be the default: {names}; choose one with FIBER_BACKEND"
        raise BackendError(msg)
    text = f"no backend is chosen, and none of those installed ({_names(plugins)}) is the default"
    problems = [*plugins.broken, *plugins.clashes, *plugins.incompatible_backends().values()]
    if problems:
        text += "; " + "; ".join(map(str, problems))
    raise BackendError(text)


def _names(plugins: Plugins) -> str:
    return ", ".join(sorted(plugins.backends())) or "none"


def refuse_undeclared(backend: str, declared: Capabilities, spec: JobSpec) -> None:
    """Refuse a job for the first thing in its spec that the backend does not declare.

    Args:
        backend: name of the backend.
        declared: its capabilities.
        spec: the job, as the backend would get it.

    Raises:
        CapabilityError: there is such a thing.
    """
    for capability, what in _needs(spec):
        if not getattr(declared, capability):
            raise CapabilityError(backend, capability, what)


def _needs(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield the capabilities that a job needs, each with the words for what needs it."""
    if spec.image is not None:
        yield "images", f"image {spec.image!r}"
    for volume in spec.volumes:
        yield "volumes", f"volume {volume.source!r}"
    if spec.resources.devices:
        yield "devices", f"a job with devices ({', '.join(sorted(spec.resources.devices))})"
    if spec.processes > 1:
        yield "fork", f"a job of {spec.processes} processes"
    if spec.detached:
        yield "detached", f"{spec.name!r}, a job that goes on by itself,"
