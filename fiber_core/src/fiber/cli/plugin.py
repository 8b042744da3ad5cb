"""``fiber plugin``: ``new`` makes a plugin from templates, ``check`` runs the conformance kit on one.

The kit runs in a pytest process of its own, see :mod:`fiber.testing.test_installed`, which tells by a pipe
how far it is; its results are shown as a table of levels.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber._version import __version__
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins

#: variable that passes the target to the pytest that runs the kit
VARIABLE = "KIT_TARGET"
_NEEDED = ("pytest", "hypothesis", "pytest_timeout")
_HEADERS = ("LEVEL", "ABOUT", "PASSED", "SKIPPED", "FAILED", "SECONDS")


@attrs.frozen(kw_only=True)
class Target:
    """Backend or kind of devices that the kit is run on."""

    #: the backend, or None
    backend: str | None = None
    #: the kind of devices, or None
    kind: str | None = None
    #: the module of the plugin that offers it, where an entry point names it
    module: str | None = None
    #: the image that jobs run in
    image: str | None = None
    #: the Python that jobs run
    python: str | None = None


def find(name: str, *, image: str | None = None, python: str | None = None) -> Target:
    """Find the backend or kind of devices of a name.

    Raises:
        FiberError: no plugin offers it, or its plugin is broken.
    """
    from fiber._plugins.manager import load_plugins

    plugins = load_plugins()
    if name in plugins.providers():
        return Target(kind=name, module=_module_of(plugins, kind=name))
    found = plugins.find_backend(name).name
    return Target(
        backend=found, module=_module_of(plugins, backend=found), image=image, python=python
    )


def _module_of(
    plugins: Plugins, *, backend: str | None = None, kind: str | None = None
) -> str | None:
    from fiber.hookspecs import PROJECT

    for plugin in plugins.distributions():
        offers = {info.name for info in plugin.backends} if backend else set(plugin.resources)
        if (backend or kind) in offers:
            for point in importlib.metadata.entry_points(group=PROJECT, name=plugin.name):
                return point.value.partition(":")[0]
    return None


def run(target: Target, *, levels: str | None = None, verbose: bool = False) -> dict[str, Any]:
    """Run the kit; returns its results.

    Raises:
        FiberError: pytest is not installed, or could not run the kit.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        msg = f"the kit needs {', '.join(missing)}; pip install 'fiber-core[testing]'"
        raise FiberError(msg)
    from fiber import testing

    with tempfile.TemporaryDirectory(prefix="fiber-kit-") as folder:
        results = Path(folder, "results.json")
        settings = Path(folder, "pytest.ini")
        # its own configuration, so that none in the working directory applies
        settings.write_text("[pytest]\naddopts = --import-mode=importlib\ntimeout = 60\n")
        argv = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", folder]
        argv += ["-p", "no:cacheprovider", "--noconftest", "-q", "-rs"]
        argv += ["-p", "fiber.testing.report"]
        argv += [f"--fiber-kit-json={results}"]
        if levels:
            argv += ["--fiber-kit-levels", levels]
        argv.append(str(Path(testing.__path__[0], "test_installed.py")))
        output = None if verbose else Path(folder, "output")
        environ = {**_environment(), VARIABLE: json.dumps(attrs.asdict(target))}
        code = _run_pytest(argv, environ, output)
        found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
        printed = output.read_text(errors="replace") if output is not None else ""
    if not any(_tests(found)):
        msg = f"the kit could not be run (pytest ended with {code}); {printed}"
        raise FiberError(msg.rstrip("; \n"))
    return found


def _run_pytest(argv: list[str], environ: Mapping[str, str], output: Path | None) -> int:
    """Run pytest; returns its exit code.

    Args:
        argv: its command.
        environ: its environment.
        output: file for what it prints, while its progress is shown here; None: it prints here
            itself.
    """
    if output is None:
        return subprocess.run(argv, env=environ, check=False).returncode
    reader, writer = os.pipe()
    with os.fdopen(reader, encoding="utf-8") as lines, output.open("wb") as file:
        try:
            pytest = subprocess.Popen(
                [*argv, f"--fiber-kit-progress={writer}"],
                env=environ,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[writer],
            )
        finally:
            os.close(writer)
        with pytest:
            try:
                show_progress(map(json.loads, lines))
                return pytest.wait()
            except BaseException:
                pytest.kill()
                raise


def show_progress(steps: Iterable[Mapping[str, Any]]) -> None:
    """Show how far a run of the kit is, on stderr: a bar on a terminal, else a line a test.

    Args:
        steps: what :class:`fiber.testing.report.ProgressWriter` writes.
    """
    if sys.stderr.isatty():
        _show_bar(steps)
    else:
        _show_lines(steps)


def _show_lines(steps: Iterable[Mapping[str, Any]]) -> None:
    count, done = 0, 0
    for step in steps:
        count = step.get("tests", count)
        if "ended" in step:
            done += 1
            word = f"{step['outcome']}, {step['seconds']:.1f} s"
            click.echo(f"{done}/{count} {step['ended']}: {word}", err=True)


def _show_bar(steps: Iterable[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("collecting", total=None)
        for step in steps:
            if "tests" in step:
                bar.update(task, total=step["tests"])
            elif "begins" in step:
                bar.update(task, description=step["begins"])
            else:
                bar.advance(task)
                if step["outcome"] == "failed":
                    bar.console.print(f"failed: {step['ended']}", style="red", markup=False)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}


def save(results: Mapping[str, Any], path: Path) -> None:
    """Write results to a file."""
    from fiber.testing.report import as_text

    try:
        path.write_text(as_text(results), encoding="utf-8")
    except OSError as error:
        msg = f"the results cannot be written to {path}: {error.strerror}"
        raise FiberError(msg) from error


def passed(results: Mapping[str, Any]) -> bool:
    """Return True where no test failed."""
    return all(test["outcome"] != "failed" for _, test in _tests(results))


def show(results: Mapping[str, Any]) -> None:
    """Print a table of levels, the measurements, and the failures."""
    from fiber.cli.output import table
    from fiber.testing.kit import LEVELS

    rows = []
    for level, about in LEVELS.items():
        tests = [test for _, test in _tests(results) if test.get("level") == level]
        counts = Counter(test["outcome"] for test in tests)
        seconds = sum(test["seconds"] for test in tests)
        if tests:
            skipped = counts["skipped"] + counts["xfailed"]
            cells = (counts["passed"], skipped, counts["failed"])
            rows.append((str(level), about, *map(str, cells), f"{seconds:.1f}"))
    table(_HEADERS, rows)
    for _, test in _tests(results):
        for quantity, number in test.get("measured", {}).items():
            click.echo(f"measured: {test['name']}: {quantity}: {number:g}")
    for subject, test in _tests(results):
        if test["outcome"] == "failed":
            word = click.style("failed", fg="red")
            click.echo(f"{word}: {subject['name']}: {test['name']}: {test.get('reason', '')}")


def _tests(results: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for subject in results.get("subjects", ()):
        for test in subject["tests"]:
            yield subject, test


_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_WORD = re.compile(r"{{(\w+)}}")
_SUFFIX = ".tmpl"
_TEMPLATES = Path(__file__).with_name("templates")


def _check_name(_: object, __: object, value: str) -> None:
    if not _NAME.fullmatch(value):
        msg = f"{value!r} is no name for a plugin: write small letters, digits and hyphens"
        raise FiberError(msg)


@attrs.frozen
class NewPlugin:
    """Names of a plugin to be made.

    Raises:
        FiberError: its name or its kind is invalid.
    """

    #: name of the backend, or of the entry point
    name: str = attrs.field(validator=_check_name)
    #: kind of the devices; None for a backend
    kind: str | None = None
    #: True for a backend of a batch system
    batch: bool = False

    def __attrs_post_init__(self) -> None:
        kind = self.kind
        if kind is not None and not (kind.isidentifier() and kind == kind.lower()):
            msg = f"{kind!r} is no kind of devices: write a word as in @fiber.meta(gpu=1)"
            raise FiberError(msg)
        if kind is not None and self.batch:
            msg = "--resource and --batch are two kinds of plugins: write one after the other"
            raise FiberError(msg)

    @property
    def template(self) -> str:
        """Folder of its templates."""
        if self.kind is not None:
            return "resource"
        return "batch" if self.batch else "backend"

    @property
    def distribution(self) -> str:
        """Name of the distribution."""
        return f"fiber-{self.name}"

    @property
    def placeholders(self) -> Mapping[str, str]:
        """Values of the templates' placeholders."""
        kind = self.kind or self.name
        return {
            "name": self.name,
            "kind": kind,
            "upper": kind.upper().replace("-", "_"),
            "distribution": self.distribution,
            "module": self.distribution.replace("-", "_"),
            "class": "".join(part.capitalize() for part in self.name.split("-")),
            "version": __version__,
        }


def create(plugin: NewPlugin, folder: Path) -> list[Path]:
    """Write the files of a new plugin; returns their paths.

    Args:
        plugin: names of the plugin.
        folder: target folder; must be absent or empty.

    Raises:
        FiberError: the folder is not empty, or cannot be written.
    """
    root = _TEMPLATES / plugin.template
    try:
        if folder.exists() and any(folder.iterdir()):
            msg = f"{folder} is there already and not empty; name another one with --directory"
            raise FiberError(msg)
        written = []
        for source in sorted(root.rglob(f"*{_SUFFIX}")):
            relative = str(source.relative_to(root)).removesuffix(_SUFFIX)
            path = folder / relative.replace("__module__", plugin.placeholders["module"])
            path.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text("utf-8")
            path.write_text(_WORD.sub(lambda found: plugin.placeholders[found[1]], text), "utf-8")
            written.append(path)
    except OSError as error:
        msg = f"{folder} cannot be written: {error.strerror}"
        raise FiberError(msg) from error
    return written


@click.group("plugin", short_help="Write a plugin, and check one by the conformance kit.")
def command() -> None:
    """Write a plugin, and check one by the conformance kit.

    ``fiber plugins`` lists those that are installed.
    """


@command.command("new", short_help="Make a plugin to begin with.")
@click.argument("name")
@click.option("--resource", metavar="KIND", help="Make a resource provider for devices of a kind.")
@click.option("--batch", is_flag=True, help="Make a backend of a batch system.")
@click.option(
    "--directory",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write it; fiber-NAME by default.",
)
def new(name: str, resource: str | None, batch: bool, directory: Path | None) -> None:
    """Write a distribution fiber-NAME with a backend NAME that works and passes the kit.

    With --batch it is one of a batch system, whose jobs wait in a queue of this machine until the
    commands of another system are put in. With --resource the distribution has a provider of devices
    instead, which users ask for as @fiber.meta(KIND=1).
    """
    plugin = NewPlugin(name, resource, batch)
    folder = directory if directory is not None else Path(plugin.distribution)
    for path in create(plugin, folder):
        click.echo(f"wrote {path}")
    checked = resource or name
    click.echo(
        f'next: pip install -e "{folder}[test]", pytest {folder}, fiber plugin check {checked}'
    )


@command.command("check", short_help="Run the kit on an installed plugin.")
@click.argument("name")
@click.option(
    "--levels", metavar="LEVELS", help="Levels of the kit, as 1-3 or 2,6; all by default."
)
@click.option("--image", help="The image that jobs run in.")
@click.option("--python", metavar="PYTHON", help="The Python that jobs run.")
@click.option(
    "--json",
    "results",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to a file.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show what pytest prints.")
@click.pass_context
def check(
    ctx: click.Context,
    name: str,
    levels: str | None,
    image: str | None,
    python: str | None,
    results: Path | None,
    verbose: bool,
) -> None:
    """Run the conformance kit on the backend or the kind of devices NAME.

    The backend is used with the settings that are in force here, and its plugin's witness is asked
    where it names one. The exit code is 1 if a test failed.
    """
    target = find(name, image=image, python=python)
    found = run(target, levels=levels, verbose=verbose)
    if results is not None:
        save(found, results)
    show(found)
    ctx.exit(0 if passed(found) else 1)
