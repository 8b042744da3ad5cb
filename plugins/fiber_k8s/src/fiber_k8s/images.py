"""Image of a folder: built, tagged by its content, pushed to a registry or loaded into nodes.

Called by :meth:`fiber_k8s.backend.K8sBackend.prepare_image` before jobs are submitted. A program builds
(docker, podman, buildah), or the SDK of fiber-docker where none is installed; nodes never run an outdated
image, because its name has its id. No credentials are read: engines use their own.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from fiber.exceptions import BackendError
from fiber.images import file_of, repository_for
from fiber_k8s.config import K8sConfig
from fiber_k8s.registries import Cluster, Registry, advice, detect_registry, load_command, registry

#: in the order in which they are looked for
ENGINES = ("docker", "podman", "buildah")
_ID = 12
#: lines of an engine's output that are kept for error messages
_KEPT = 20


def _print_progress(line: str) -> None:
    print(f"fiber: {line}", file=sys.stderr, flush=True)  # noqa: T201 - progress is for the user


def prepare(
    context: str,
    config: K8sConfig,
    cluster: Callable[[], Cluster],
    progress: Callable[[str], None] = _print_progress,
) -> str | None:
    """Build the image of a folder, and push it to a registry or load it into the cluster's nodes.

    Returns:
        its name; None where the folder has no Dockerfile, and in a pod where nothing can build.

    Raises:
        AmbiguousImageError: the folder has several.
        BackendError: there is no engine or registry, or a step failed; the text has what mends it.
    """
    file = file_of(context, "Dockerfile", "*.docker")
    if file is None:
        return None
    engine = find_engine(config.engine, progress)
    where = cluster()
    name = repository_for(file.parent)
    if engine is None and where == Cluster() and not _has_sdk() and Path(context).is_dir():
        # in a pod, whose image was mostly made from that very folder
        progress(f"{file} is not built, for nothing here builds images: the program's own is taken")
        return None
    # before the build, so that a wrong registry is reported at once
    target: Registry | None = None
    if config.registry:
        target = registry(config.registry)
    elif load_command(where, name) is None:
        target = detect_registry(where, known_hosts())
    if engine is None:
        image = _build_by_sdk(file, target, progress)
    else:
        image = _build(engine, file, config.platform, target, name)
    if target is None:
        _load(image, where, progress)
    return image


def _build(
    engine: Engine, file: Path, platform: str | None, target: Registry | None, name: str
) -> str:
    engine.progress(f"building {file} with {engine.name}")
    image_id = engine.build(file, platform)
    tag = image_id.rpartition(":")[2][:_ID]
    # without a registry, engines other than Docker prefix a host
    host = "" if engine.name == "docker" else "localhost/"
    image = f"{host}fiber-{name}:{tag}" if target is None else str(target.named(name, tag))
    engine.run(["tag", image_id, image], f"name an image {image}")
    if target is not None:
        engine.progress(f"pushing {image}")
        with _push_advice(target, name, engine.name):
            engine.run(["push", image], f"push {image}")
    return image


@contextlib.contextmanager
def _push_advice(target: Registry, name: str, engine: str) -> Iterator[None]:
    """Within, the error of a refused push says how to fix it."""
    try:
        yield
    except BackendError as error:
        output = error.output if isinstance(error, EngineError) else str(error)
        msg = f"{error}; {advice(target, name, engine, output)}"
        raise BackendError(msg) from error


def _load(image: str, where: Cluster, progress: Callable[[str], None]) -> None:
    """Bring an image to the nodes of a cluster on this host."""
    argv = load_command(where, image)
    if not argv:
        return
    if shutil.which(argv[0]) is None:
        msg = (
            f"context {where.context!r} is a cluster of {argv[0]}, and {argv[0]} is not on PATH to "
            "load images: install it, or name a registry with --docker-registry"
        )
        raise BackendError(msg)
    progress(f"loading {image} into {where.context}")
    _follow(argv, f"{argv[0]} could not load {image}", progress)


def _build_by_sdk(file: Path, target: Registry | None, progress: Callable[[str], None]) -> str:
    """Build and push by the SDK of the plugin for Docker, where that is installed."""
    if not _has_sdk():
        msg = (
            f"{file} describes an image, and nothing here builds images: install one of "
            f"{', '.join(ENGINES)}, or fiber-docker for an engine that is reached by its "
            "socket; or name an image that exists, with --image"
        )
        raise BackendError(msg)
    from fiber_docker.client import Client
    from fiber_docker.config import DockerConfig
    from fiber_docker.images import Images

    settings = DockerConfig(registry=None if target is None else target.prefix)
    client = Client(settings)
    with contextlib.closing(client), contextlib.ExitStack() as stack:
        if target is not None:
            stack.enter_context(_push_advice(target, repository_for(file.parent), "docker"))
        return str(Images(client, settings, progress).build(str(file)))


def _has_sdk() -> bool:
    return importlib.util.find_spec("fiber_docker") is not None


# -- engines


class EngineError(BackendError):
    """An engine's command failed; ``output`` has the last lines of what it wrote."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


@attrs.frozen
class Engine:
    """Program that builds images."""

    #: its name
    name: str
    #: its path
    program: str
    #: called with each line of its output
    progress: Callable[[str], None]

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

    def run(self, words: Sequence[str], what: str) -> None:
        """Run the engine with some arguments.

        Raises:
            EngineError: it failed.
        """
        _follow([self.program, *words], f"{self.name} could not {what}", self.progress)


def _follow(argv: Sequence[str], failure: str, progress: Callable[[str], None]) -> None:
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
            for line in process.stdout or ():
                if line.strip():
                    last.append(line.rstrip())
                    progress(last[-1])
    except OSError as error:
        msg = f"{failure}: {error}"
        raise EngineError(msg, "") from error
    if process.returncode:
        last_line = f": {last[-1]}" if last else ""
        code = process.returncode
        how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        msg = f"{failure} ({how}){last_line}"
        raise EngineError(msg, "\n".join(last))


def find_engine(
    named: str | None, progress: Callable[[str], None] = _print_progress
) -> Engine | None:
    """Return the engine of that name, or the first that is installed; None where there is none.

    Raises:
        BackendError: the named engine is not installed.
    """
    for name in (named,) if named else ENGINES:
        program = shutil.which(name)
        if program is not None:
            return Engine(name, program, progress)
    if named:
        msg = f"{named} is to build images and is not on PATH: install it, or name another engine"
        raise BackendError(msg)
    return None


def known_hosts(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the registries with credentials or helpers in the engines' files."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME", "/"))
    docker = Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    files = [docker, home / ".config" / "containers" / "auth.json"]
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        files.append(Path(runtime, "containers", "auth.json"))
    if named := environ.get("REGISTRY_AUTH_FILE"):
        files.insert(0, Path(named))
    return list(dict.fromkeys(host for file in files for host in _hosts_in(file)))


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
