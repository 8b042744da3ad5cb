"""What a target is, and the files from which targets have parsers read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

#: a folder of inputs for each target: captures of what Fiber said, and every input that failed once
CORPUS = Path(__file__).parent / "corpus"


@dataclasses.dataclass(frozen=True)
class Target:
    """A parser, and what may come out of it."""

    name: str
    #: feeds it; whatever it returns is fine
    feed: Callable[[bytes], object]
    #: the documented errors; any other one is a finding
    errors: tuple[type[Exception], ...]

    def __call__(self, data: bytes) -> None:
        """Feed one input; what is raised is a finding."""
        with contextlib.suppress(*self.errors):
            self.feed(data)


#: all targets by name
TARGETS: dict[str, Target] = {}


def target(*errors: type[Exception]) -> Callable[[Callable[[bytes], object]], Target]:
    """Register a function as the target of its name; only these errors may come out of it."""

    def register(feed: Callable[[bytes], object]) -> Target:
        made = TARGETS[feed.__name__] = Target(feed.__name__, feed, errors)
        return made

    return register


def load_all() -> None:
    """Import the modules of targets, which registers them."""
    for name in ("files", "jobs", "wire"):
        importlib.import_module(f"fuzz.{name}")


@functools.cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fiber-fuzz-")


def empty_folder() -> Path:
    """Return a folder with nothing in it, the same one each time."""
    folder = Path(_root().name, "folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def file_of(data: bytes, name: str = "input") -> Path:
    """Return a file with these bytes, alone in its folder."""
    path = Path(_root().name, name)
    path.write_bytes(data)
    return path
