"""Plugins of tests: distributions with entry points in a temporary folder, and objects."""

import importlib.metadata
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fiber.hookspecs import hookimpl

#: put before the source of each plugin module
_PREAMBLE = """
from fiber.hookspecs import hookimpl
from fiber.model import BackendClaim, BackendContext, BackendInfo


def refuse(context):
    raise RuntimeError("not meant to be loaded")


"""


class Answers:
    """A plugin that answers one hook so, or raises what is an exception."""

    def __init__(self, hook: str, answer: Any) -> None:
        def reply() -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        setattr(self, hook, hookimpl(specname=hook)(reply))


class Site:
    """Folder of distributions, like site-packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(
        self,
        name: str,
        *,
        version: str = "1.0",
        entry_points: Mapping[str, str],
        modules: Mapping[str, str] | None = None,
    ) -> None:
        """Add a distribution: its metadata, its entry points and its modules."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        points = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[fiber]\n{points}")
        for module, source in (modules or {}).items():
            text = _PREAMBLE + textwrap.dedent(source)
            (self.folder / f"{module}.py").write_text(text)

    def entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """List the entry points of the distributions in this folder only."""
        found = importlib.metadata.distributions(path=[str(self.folder)])
        # the order of a folder's entries is the file system's
        ordered = sorted(found, key=lambda distribution: distribution.metadata["Name"])
        return [point for dist in ordered for point in dist.entry_points.select(group="fiber")]
