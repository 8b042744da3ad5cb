"""Runs the conformance kit on an installed plugin, in a pytest of its own, and shows the results."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins

__all__ = ["Target", "find", "passed", "run", "save", "show"]

#: where the pytest that runs the kit finds what it is to be run on
VARIABLE = "KIT_TARGET"
_NEEDED = ("pytest", "hypothesis", "pytest_timeout")
_HEADERS = ("LEVEL", "ABOUT", "PASSED", "SKIPPED", "FAILED", "SECONDS")


@attrs.frozen(kw_only=True)
class Target:
    """What the kit is run on."""

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
    """The backend or the kind of devices of a name.

    Raises:
        FiberError: nobody offers it, or its plugin is broken.
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
    """Run the kit; its results.

    Raises:
        FiberError: pytest is not installed, or could not run the kit.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        msg = f"the kit needs {', '.join(missing)}; pip install 'fiber-core[testing]'"
        raise FiberError(msg)
    from fiber.testing import installed

    with tempfile.TemporaryDirectory(prefix="fiber-kit-") as folder:
        results = Path(folder, "results.json")
        settings = Path(folder, "pytest.ini")
        # nothing of the folder where the command was given has a say
        settings.write_text("[pytest]\naddopts = --import-mode=importlib\ntimeout = 60\n")
        argv = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", folder]
        argv += ["-p", "no:cacheprovider", "--noconftest", "-q", "-rs"]
        argv += ["-p", "fiber.testing.report"]
        argv += [f"--fiber-kit-json={results}"]
        if levels:
            argv += ["--fiber-kit-levels", levels]
        argv.append(str(Path(installed.__path__[0], "test_installed.py")))
        done = subprocess.run(
            argv,
            env={**_environment(), VARIABLE: json.dumps(attrs.asdict(target))},
            stdout=None if verbose else subprocess.PIPE,
            stderr=None if verbose else subprocess.STDOUT,
            text=True,
            check=False,
        )
        found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    if not any(_tests(found)):
        msg = f"the kit could not be run (pytest ended with {done.returncode}); {done.stdout or ''}"
        raise FiberError(msg.rstrip("; \n"))
    return found


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
    """Whether no test failed."""
    return all(test["outcome"] != "failed" for _, test in _tests(results))


def show(results: Mapping[str, Any]) -> None:
    """Print a line a level, what was measured, and what failed."""
    from fiber.cli.show import table
    from fiber.testing.levels import LEVELS

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
        for what, number in test.get("measured", {}).items():
            click.echo(f"measured: {what}: {number:g}")
    for subject, test in _tests(results):
        if test["outcome"] == "failed":
            word = click.style("failed", fg="red")
            click.echo(f"{word}: {subject['name']}: {test['name']}: {test.get('reason', '')}")


def _tests(results: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for subject in results.get("subjects", ()):
        for test in subject["tests"]:
            yield subject, test
