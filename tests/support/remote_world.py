"""A remote host for tests: a folder, an environment and a Python of its own on this machine."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fiber
from distributions import Site
from fiber._agent.job import MODULE
from fiber._runtime import runtime


class RemoteHost:
    """A host that the backend ``far`` runs jobs on.

    Args:
        folder: of this test.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "far-home"
        self.home.mkdir()
        self.site = folder / "far-site"
        Site(self.site).add("far", entry_points={"far": "fiber.testing.fake_remote"})

    def settings(self, backend: str = "far") -> dict[str, Any]:
        """For :func:`fiber.init`."""
        return {
            "backend": backend,
            f"{backend}_folder": str(self.home),
            f"{backend}_path": str(self.site),
        }

    def environ(self, backend: str = "far", **settings: object) -> dict[str, str]:
        """For a program that begins a run."""
        values = {**self.settings(backend), **settings}
        variables = {f"FIBER_{key}".upper(): str(value) for key, value in values.items()}
        # the program finds the plugin there too
        paths = [str(self.site), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def use(self, backend: str = "far", **settings: object) -> None:
        """Have this process start its children there."""
        fiber.init(**{**self.settings(backend), **settings})

    def left(self) -> list[str]:
        """Folders of jobs that were not removed."""
        return [str(path) for path in self.home.glob("fiber-*")]


@pytest.fixture
def remote_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteHost]:
    """A remote host; this process uses it until the test ends."""
    host = RemoteHost(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(host.site)])
    host.use()
    yield host
    current = runtime.started()
    if current is not None:
        current.close()
    fiber.init()


def supervisor_of(pid: int) -> psutil.Process:
    """The supervisor of a remote job's process."""
    parent = psutil.Process(pid).parent()
    assert MODULE in parent.cmdline()
    return parent
