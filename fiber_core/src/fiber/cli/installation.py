"""What is installed here: ``fiber plugins`` lists it, ``fiber config`` shows its settings, ``fiber doctor`` checks it.

The core's checks are of versions, other distributions, folders and the clock; those of a backend
are :meth:`fiber.abc.Backend.check`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber import _version
from fiber.cli import output
from fiber.cli.options import BackendCommand, backend_option, json_option, loaded_plugins
from fiber.cli.output import plain
from fiber.cli.session import Session
from fiber.exceptions import FiberError
from fiber.model import Check

if TYPE_CHECKING:
    from fiber._config.settings import Setting
    from fiber._plugins.manager import InstalledPlugin, Plugins

_HEADERS = ("DISTRIBUTION", "VERSION", "OFFERS", "NAME", "DETAIL")
_STYLES = {"broken": "red", "clash": "red", "refused": "red"}
#: hooks whose results have rows of their own
_LISTING = frozenset({"fiber_backends", "fiber_commands", "fiber_resource_providers"})


@click.command("plugins", short_help="List plugins and what they offer.")
@json_option
def plugins(as_json: bool) -> None:
    """List the installed plugins, what each offers, and those that cannot be used, with why."""
    from fiber._plugins.manager import load_plugins

    with quiet_plugins():
        found = load_plugins()
        if as_json:
            output.as_json(_data(found))
        else:
            rows = [row for plugin in found.distributions() for row in _rows(found, plugin)]
            output.table(_HEADERS, [*rows, *_bad_rows(found)], styles=_STYLES)


@contextlib.contextmanager
def quiet_plugins() -> Iterator[None]:
    """Do not log unusable plugins in the ``with`` block; for commands that print them."""
    log = logging.getLogger("fiber.plugins")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def problems(plugins: Plugins) -> list[str]:
    """Return a sentence for each plugin or name that cannot be used."""
    found = [str(error) for error in (*plugins.clashes, *plugins.incompatible_backends().values())]
    # without plugins that are broken by a clash, which is listed already
    found += [str(broken) for broken in plugins.broken if str(broken.error) not in found]
    return [*found, *_shadowed_commands(plugins)]


def _shadowed_commands(plugins: Plugins) -> list[str]:
    from fiber.cli.main import BUILT_IN

    return [
        f"the command {name!r} is offered by fiber-core {_version.__version__} and "
        f"{plugin.distribution} {plugin.version}; fiber-core keeps its own"
        for plugin in plugins.distributions()
        for name in plugin.commands
        if name in BUILT_IN
    ]


def _rows(plugins: Plugins, plugin: InstalledPlugin) -> Iterable[tuple[str, ...]]:
    distribution = (plugin.distribution, plugin.version)
    refused = plugins.incompatible_backends()
    for info in plugin.backends:
        names = ", ".join((info.name, *info.aliases))
        if info.name in refused:
            yield (*distribution, "refused", names, str(refused[info.name]))
        else:
            yield (*distribution, "backend", names, ", ".join(info.capabilities.names()))
    for kind in plugin.resources:
        yield (*distribution, "resource", kind, "")
    for name in plugin.commands:
        yield (*distribution, "command", name, "")
    for hook in plugin.hooks:
        if hook not in _LISTING:
            yield (*distribution, "hook", hook, "")


def _bad_rows(plugins: Plugins) -> Iterable[tuple[str, ...]]:
    for broken in plugins.broken:
        detail = f"{type(broken.error).__name__}: {broken.error}"
        yield broken.distribution, broken.version, "broken", broken.name, detail
    for clash in (*map(str, plugins.clashes), *_shadowed_commands(plugins)):
        yield "", "", "clash", "", clash


def _data(plugins: Plugins) -> dict[str, Any]:
    refused = plugins.incompatible_backends()
    return {
        "plugins": [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "backends": [
                    {
                        "name": info.name,
                        "aliases": list(info.aliases),
                        "api": list(info.api),
                        "summary": info.summary,
                        "default": info.default,
                        "capabilities": list(info.capabilities.names()),
                        "refused": str(refused.get(info.name, "")) or None,
                    }
                    for info in plugin.backends
                ],
                "resources": list(plugin.resources),
                "commands": list(plugin.commands),
                "hooks": list(plugin.hooks),
            }
            for plugin in plugins.distributions()
        ],
        "broken": [
            {
                "name": broken.name,
                "distribution": broken.distribution,
                "version": broken.version,
                "error": f"{type(broken.error).__name__}: {broken.error}",
            }
            for broken in plugins.broken
        ],
        "clashes": [*map(str, plugins.clashes), *_shadowed_commands(plugins)],
    }


# -- settings


@click.command("config", cls=BackendCommand, short_help="Show the settings and where each was set.")
@json_option
@backend_option
def config(as_json: bool, backend: str | None) -> None:
    """Show the settings that a program started here would have, and where each was set."""
    from fiber._config.convert import render

    settings = _explain(Session.load(backend))
    if as_json:
        output.as_json(
            [
                {"key": s.key, "value": s.value, "origin": str(s.origin), "help": s.help}
                for s in settings
            ]
        )
    else:
        rows = [(s.key, render(s.value), str(s.origin)) for s in settings]
        output.table(("KEY", "VALUE", "ORIGIN"), rows)


def _explain(session: Session) -> list[Setting]:
    from fiber._config.sources import Origin, OriginKind

    settings = session.config.explain()
    if session.config.backend is not None:
        return settings
    # none was named: show the one that would be used
    kind = OriginKind.DEFAULT if session.info.default else OriginKind.DETECTED
    return [
        attrs.evolve(s, value=session.info.name, origin=Origin(kind)) if s.key == "backend" else s
        for s in settings
    ]


# -- checks

_CORE = "fiber-core"
#: an older project's distribution, which installs the same import name
_NAMESAKE = "fiber"
_OLDEST = (3, 10)
#: a requirement of exactly one version, without conditions
_PINNED = re.compile(r"([\w.-]+?)\s*\(?==\s*([\w.+!-]+)\)?")


def core_checks() -> Iterator[Check]:
    """Run the checks that need no plugin."""
    yield _python()
    yield _core_version()
    yield _namesake()
    yield _transport()
    yield _run_root()
    yield _clock()


def plugin_checks(plugins: Plugins) -> Iterator[Check]:
    """Check for plugins that cannot be used and for versions that conflict."""
    broken = problems(plugins)
    for sentence in broken:
        fix = "uninstall, reinstall or upgrade it; 'fiber --debug plugins' has the details"
        yield Check(name="plugins", ok=False, detail=sentence, fix=fix)
    versions = {p.distribution: p.version for p in plugins.distributions() if p.version}
    conflicts = list(_version_conflicts(versions))
    for dependent, requirement, found in conflicts:
        yield Check(
            name="versions",
            ok=False,
            detail=f"{dependent} needs {requirement}, installed is {found}",
            fix=f"{_pip()} install '{requirement}'",
        )
    if not broken and not conflicts:
        shown = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        yield Check(name="plugins", ok=True, detail=shown)


def _python() -> Check:
    return Check(
        name="python",
        ok=sys.version_info >= _OLDEST,
        detail=f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}",
        fix=f"use Python {'.'.join(map(str, _OLDEST))} or later",
    )


def _core_version() -> Check:
    home, code = Path(_version.__file__).parent, _version.__version__
    detail = f"{code} in {home}"
    try:
        installed = importlib.metadata.version(_CORE)
    except importlib.metadata.PackageNotFoundError:
        installed = ""
        detail += f", and no {_CORE} is installed"
    else:
        if installed != code:
            detail += f", while the installed {_CORE} is {installed}"
    fix = f"{_pip()} install --force-reinstall {_CORE}, or leave the folder that hides it"
    return Check(name=_CORE, ok=installed == code, detail=detail, fix=fix)


def _namesake() -> Check:
    try:
        version = importlib.metadata.version(_NAMESAKE)
    except importlib.metadata.PackageNotFoundError:
        return Check(name="import name", ok=True, detail="no other distribution installs 'fiber'")
    return Check(
        name="import name",
        ok=False,
        detail=f"the distribution '{_NAMESAKE}' {version} is another project and installs its "
        "files into the same folder 'fiber'",
        # reinstall, since uninstalling it removes files that both have
        fix=f"{_pip()} uninstall -y {_NAMESAKE} && {_pip()} install --force-reinstall {_CORE}",
    )


def _transport() -> Check:
    try:
        nng = importlib.import_module("fiber._wire.nng")
    except (ImportError, OSError) as error:
        detail = f"the messaging library cannot be loaded: {error}"
        return Check(
            name="transport",
            ok=False,
            detail=detail,
            fix=f"{_pip()} install --force-reinstall pynng",
        )
    version = importlib.metadata.version("pynng")
    return Check(name="transport", ok=True, detail=f"pynng {version}, {nng.versions()}")


def _run_root() -> Check:
    from fiber._agent import rundir

    fix = "free some space there, or set XDG_RUNTIME_DIR to a folder of yours"
    try:
        root = rundir.run_root()
        with tempfile.NamedTemporaryFile(dir=root) as file:
            file.write(b"x")
    except (FiberError, OSError) as error:
        return Check(name="run folder", ok=False, detail=str(error), fix=fix)
    return Check(name="run folder", ok=True, detail=str(root))


def _clock() -> Check:
    # certificates of a run are valid from about now; a clock behind the modification time of
    # installed files was set back, or never set
    now, written = time.time(), Path(_version.__file__).stat().st_mtime
    detail = f"{datetime.fromtimestamp(now, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    if now < written:
        detail += ", earlier than the time at which Fiber was installed"
    return Check(name="clock", ok=now >= written, detail=detail, fix="set the clock, best by NTP")


def _version_conflicts(versions: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield distribution, requirement and installed version where an exact requirement is not met."""
    found = {_canonical(name): version for name, version in versions.items()}
    for name in versions:
        for other, version in _pins(name):
            installed = found.get(_canonical(other), version)
            if installed != version:
                yield name, f"{other}=={version}", installed


def _pins(distribution: str) -> Iterable[tuple[str, str]]:
    try:
        requirements = importlib.metadata.requires(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        # a plugin that was registered by hand
        return ()
    matches = (_PINNED.fullmatch(requirement.strip()) for requirement in requirements)
    return [(match[1], match[2]) for match in matches if match]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip() -> str:
    return "python3 -m pip"


class _Quiet(BackendCommand):
    """Command that does not log broken plugins, since it prints them."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """List its own options and arguments, then those of backends."""
        with quiet_plugins():
            return super().get_params(ctx)


@click.command("doctor", cls=_Quiet, short_help="Check this installation and a backend.")
@click.argument("backend", required=False)
@click.pass_context
def doctor(ctx: click.Context, backend: str | None) -> None:
    """Check Fiber's installation, and BACKEND or the one that would be used, end to end.

    Each check is a line; below one that failed stands what mends it. The exit code is 1 if any
    failed.
    """
    failed = False
    with quiet_plugins():
        for check in _checks(backend):
            failed = failed or not check.ok
            _show(check)
    ctx.exit(1 if failed else 0)


def _checks(backend: str | None) -> Iterator[Check]:
    yield from core_checks()
    plugins = loaded_plugins()
    yield from plugin_checks(plugins)
    try:
        session = Session.load(backend, plugins=plugins)
        found = f"backend {session.info.name!r}, {session.config.origin('backend')}"
        yield Check(name="settings", ok=True, detail=found)
        with session.begin_run() as run:
            for check in run.backend.check():
                yield Check(
                    name=f"{session.info.name}: {check.name}",
                    ok=check.ok,
                    detail=check.detail,
                    fix=check.fix,
                )
    except FiberError as error:
        # a backend that cannot be opened is reported as a failed check
        yield Check(name="backend", ok=False, detail=str(error), fix="mend that and ask again")


def _show(check: Check) -> None:
    word = click.style("ok    ", fg="green") if check.ok else click.style("failed", fg="red")
    detail = plain(" ".join(check.detail.split()))
    click.echo(f"{word}  {check.name}{': ' if detail else ''}{detail}")
    if not check.ok and check.fix:
        click.echo(plain(f"        fix: {check.fix}"))
