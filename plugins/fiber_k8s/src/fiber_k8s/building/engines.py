"""Programs that build and push images: docker, podman, buildah, with the credentials they have."""

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

__all__ = ["ENGINES", "Engine", "EngineError", "find", "known_hosts"]

#: in the order in which they are looked for
ENGINES = ("docker", "podman", "buildah")
#: lines of an engine's that are kept to tell why it failed
_KEPT = 20


class EngineError(BackendError):
    """An engine's command failed.

    Args:
        message: which, and how.
        output: the last of what it said.
    """

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class Engine:
    """One program that builds images.

    Args:
        name: its name.
        program: its path.
        say: told of progress, a line at a time.
    """

    def __init__(self, name: str, program: str, say: Callable[[str], None]) -> None:
        self.name = name
        self._program = program
        self._say = say

    def build(self, file: Path, platform: str | None) -> str:
        """Build what a file describes, in its folder; the image's id.

        Raises:
            EngineError: a step failed; what the engine said of it was shown.
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
        """Run the engine, its output to ours.

        Raises:
            EngineError: it failed.
        """
        follow([self._program, *words], f"{self.name} could not {what}", self._say)


def follow(argv: Sequence[str], failure: str, say: Callable[[str], None]) -> None:
    """Run a program and tell each line that it prints.

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
                say(line)
    except OSError as error:
        msg = f"{failure}: {error}"
        raise EngineError(msg, "") from error
    if process.returncode:
        output = "\n".join(last)
        told = f": {last[-1]}" if last else ""
        code = process.returncode
        how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        msg = f"{failure} ({how}){told}"
        raise EngineError(msg, output)


def _lines(stream: IO[str] | None) -> Iterator[str]:
    if stream is not None:
        yield from (line.rstrip() for line in stream if line.strip())


def find(wanted: str | None, say: Callable[[str], None] | None = None) -> Engine | None:
    """The engine that is wanted, or the first there is; None where there is none.

    Raises:
        BackendError: the one that is wanted is not there.
    """
    for name in (wanted,) if wanted else ENGINES:
        program = shutil.which(name)
        if program is not None:
            return Engine(name, program, say or to_stderr)
    if wanted:
        msg = f"{wanted} is to build images and is not on PATH: install it, or name another engine"
        raise BackendError(msg)
    return None


def known_hosts(environ: Mapping[str, str] | None = None) -> list[str]:
    """Registries that the engines' files have credentials or helpers for; none is read or asked."""
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
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # no file, or one that the engine will complain about in its own words
        return []
    if not isinstance(told, dict):
        return []
    named = [*(told.get("auths") or {}), *(told.get("credHelpers") or {})]
    # Docker Hub's is written as a URL with a version
    return [str(one).partition("://")[2].partition("/")[0] or str(one) for one in named]


def to_stderr(line: str) -> None:
    """Tell progress to whoever waits."""
    print(f"fiber: {line}", file=sys.stderr, flush=True)  # noqa: T201 - progress is for whoever waits
