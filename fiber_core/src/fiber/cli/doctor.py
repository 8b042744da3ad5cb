"""``fiber doctor``: checks the installation and a backend, and prints fixes.

The core's checks are of versions, other distributions, folders and the clock; those of a backend
are :meth:`fiber.abc.Backend.check`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fiber import _version
from fiber.cli.errors import plain
from fiber.cli.options import BackendCommand, loaded_plugins
from fiber.exceptions import FiberError
from fiber.model import Check

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins

__all__ = ["command", "core_checks", "plugin_checks"]

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
    from fiber.cli.plugins import problems

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
        from fiber.cli.plugins import quiet_plugins

        with quiet_plugins():
            return super().get_params(ctx)


@click.command("doctor", cls=_Quiet, short_help="Check this installation and a backend.")
@click.argument("backend", required=False)
@click.pass_context
def command(ctx: click.Context, backend: str | None) -> None:
    """Check Fiber's installation, and BACKEND or the one that would be used, end to end.

    Each check is a line; below one that failed stands what mends it. The exit code is 1 if any
    failed.
    """
    from fiber.cli.plugins import quiet_plugins

    failed = False
    with quiet_plugins():
        for check in _checks(backend):
            failed = failed or not check.ok
            _show(check)
    ctx.exit(1 if failed else 0)


def _checks(backend: str | None) -> Iterator[Check]:
    from fiber.cli.session import Session

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
