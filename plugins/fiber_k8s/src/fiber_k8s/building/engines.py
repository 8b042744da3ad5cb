"""Programs that build and push images (docker, podman, buildah), with their own credentials."""

from __future__ import annotations

import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from fiber.exceptions import BackendError

__all__ = ["ENGINES", "Engine", "EngineError", "find_engine", "known_hosts"]

#: in the order in which they are looked for
ENGINES = ("docker", "podman", "buildah")
#: lines of an engine's output that are kept for error messages
_KEPT = 20


class EngineError(BackendError):
    """An engine's command failed."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class Engine:
    """Program that builds images."""

    def __init__(self, name: str, program: str, progress: Callable[[str], None]) -> None:
        self.name = name
        self._program = program
        self._progress = progress

    def build(self, file: Path, platform: str | None) -> str:
        """Build a Dockerfile in its folder; return the image's id.

        Raises:
            EngineError: a step failed; its output was passed to ``progress``.
        """
        with tempfile.TemporaryDirectory(prefix="fiber-") as folder:
            found = Path(folder, "id")
            words = ["build", "--iidfile", str(found), "--file", str(file)]
            words += ["--platform", platform] if platform else []
            self.run([*words, str(file.parent)], f"build {file}")
            return found.read_text(encoding="utf-8").strip()

    def tag(self, image_id: str, name: str) -> None:
        """Give an image a name."""
        self.run(["tag", image_id, name], f"name an image {name}")

    def push(self, name: str) -> None:
        """Push an image to the registry that its name begins with."""
        self.run(["push", name], f"push {name}")

    def run(self, words: Sequence[str], what: str) -> None:
        """Run the engine with some arguments.

        Raises:
            EngineError: it failed.
        """
        follow([self._program, *words], f"{self.name} could not {what}", self._progress)


def follow(argv: Sequence[str], failure: str, progress: Callable[[str], None]) -> None:
    """Run a program and pass on each line that it prints.

    Raises:
        EngineError: it failed, or cannot be run; the text begins with ``failure``.
    """
    last: collections.deque[str] = collections.deque(maxlen=_KEPT)
    try:
        with subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in _lines(process.stdout):
                last.append(line)
                progress(line)
    except OSError as error:
        msg = f"{failure}: {error}"
        raise EngineError(msg, "") from error
    if process.returncode:
        output = "\n".join(last)
        last_line = f": {last[-1]}" if last else ""
        code = process.returncode
        how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        msg = f"{failure} ({how}){last_line}"
        raise EngineError(msg, output)


def _lines(stream: IO[str] | None) -> Iterator[str]:
    if stream is not None:
        yield from (line.rstrip() for line in stream if line.strip())


def find_engine(named: str | None, progress: Callable[[str], None] | None = None) -> Engine | None:
    """Return the engine of that name, or the first that is installed; None where there is none.

    Raises:
        BackendError: the named engine is not installed.
    """
    for name in (named,) if named else ENGINES:
        program = shutil.which(name)
        if program is not None:
            return Engine(name, program, progress or print_progress)
    if named:
        msg = f"{named} is to build images and is not on PATH: install it, or name another engine"
        raise BackendError(msg)
    return None


def known_hosts(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the registries with credentials or helpers in the engines' files."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME", "/"))
    docker = Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    runtime = environ.get("XDG_RUNTIME_DIR")
    files = [docker, home / ".config" / "containers" / "auth.json"]
    if runtime:
        files.append(Path(runtime, "containers", "auth.json"))
    if environ.get("REGISTRY_AUTH_FILE"):
        files.insert(0, Path(environ["REGISTRY_AUTH_FILE"]))
    found: dict[str, None] = {}
    for file in files:
        for host in _hosts_in(file):
            found[host] = None
    return list(found)


def _hosts_in(file: Path) -> list[str]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # no file, or an invalid one, which the engine itself reports
        return []
    if not isinstance(content, dict):
        return []
    named = [*(content.get("auths") or {}), *(content.get("credHelpers") or {})]
    # Docker Hub's is written as a URL with a version
    return [str(one).partition("://")[2].partition("/")[0] or str(one) for one in named]


def print_progress(line: str) -> None:
    """Print a line of progress."""
    print(f"fiber: {line}", file=sys.stderr, flush=True)  # noqa: T201 - progress is for the user
