"""Tests of the core on any backend: ``pytest --fiber-backend NAME``, or ``FIBER_TEST_BACKEND=NAME``.

The engine is made ready once, for all workers of xdist, and chosen by the environment as users
choose it. Of all tests those with the mark ``any_backend`` run. Where jobs do not share this machine's files
and process ids, those with the mark ``one_host`` and those that use ``tmp_path`` are skipped.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

#: makes an engine ready and yields the variables by which a program uses it
Engine = Callable[[], AbstractContextManager[Mapping[str, str]]]

_stack = contextlib.ExitStack()
_before: dict[str, str | None] = {}


@contextlib.contextmanager
def local() -> Iterator[Mapping[str, str]]:
    """This machine."""
    yield {}


@contextlib.contextmanager
def far() -> Iterator[Mapping[str, str]]:
    """Programs of this machine that see nothing of their submitter."""
    from distributions import Site

    with tempfile.TemporaryDirectory(prefix="fiber-far-") as folder:
        home, site = Path(folder, "home"), Path(folder, "site")
        home.mkdir()
        Site(site).add("far", entry_points={"far": "fiber.testing.fake_remote"})
        ours = os.environ.get("PYTHONPATH")
        yield {
            "FIBER_FAR_FOLDER": str(home),
            "FIBER_FAR_PATH": str(site),
            # the master finds the plugin there too
            "PYTHONPATH": os.pathsep.join([str(site), ours] if ours else [str(site)]),
        }


@contextlib.contextmanager
def docker() -> Iterator[Mapping[str, str]]:
    """An engine of the tests' own."""
    import dockerd
    from require import need

    need("docker", dockerd.missing())
    # where pytest makes the folders of tests, so that children write into them
    folders = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    shared = Path(folders, f"pytest-of-{getpass.getuser()}")
    shared.mkdir(mode=0o700, exist_ok=True)
    with dockerd.started() as engine:
        yield {
            "DOCKER_HOST": engine.url,
            "FIBER_IMAGE": engine.image,
            "FIBER_DOCKER_VOLUMES": f"{shared}:{shared}",
        }


@contextlib.contextmanager
def ssh() -> Iterator[Mapping[str, str]]:
    """Three hosts."""
    from ssh_hosts import ssh_hosts

    with ssh_hosts("alpha", "beta", "gamma") as world:
        yield world.environ(slots=8)


#: engines whose jobs see the files of tests, whatever their backends promise
HERE = frozenset({"local", "far", "docker", "ssh"})
ENGINES: Mapping[str, Engine] = {"local": local, "far": far, "docker": docker, "ssh": ssh}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fiber").addoption(
        "--fiber-backend",
        metavar="NAME",
        choices=sorted(ENGINES),
        default=os.environ.get("FIBER_TEST_BACKEND") or None,
        help="run the tests with the mark any_backend, on this backend",
    )


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--fiber-backend")
    if name is None:
        return
    if not hasattr(config, "workerinput"):
        _set(FIBER_BACKEND=name, **_stack.enter_context(ENGINES[name]()))
    # the environment of a worker of xdist is that of the process that started it
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path.extend(entry for entry in found if entry and entry not in sys.path)


def pytest_unconfigure() -> None:
    _stack.close()
    for key, value in _before.items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    _before.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    name = config.getoption("--fiber-backend")
    if name is None:
        return
    chosen = [item for item in items if item.get_closest_marker("any_backend")]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen
    same_host = _same_host(name)
    for item in items:
        mark = item.get_closest_marker("one_host")
        if mark is not None and not same_host:
            item.add_marker(pytest.mark.skip(reason=f"one host only: {mark.args[0]}"))
        elif name not in HERE and "tmp_path" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="one machine only: children write files"))


def _same_host(name: str) -> bool:
    from fiber.plugins import load_plugins

    return load_plugins().find_backend(name).capabilities.same_host


def _set(**variables: str) -> None:
    for key, value in variables.items():
        _before[key] = os.environ.get(key)
        os.environ[key] = value
