"""Images: pulled by the pull policy, or built from a folder and pushed, with progress."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError
from fiber.images import Reference, file_of, repository_for
from fiber_docker.client import Client, MissingImageError
from fiber_docker.config import DockerConfig


class Images:
    """The images of one engine; thread-safe.

    Args:
        client: the engine.
        config: when to pull, and where to push.
        report: called with lines of progress; stderr by default.
    """

    def __init__(
        self, client: Client, config: DockerConfig, report: Callable[[str], None] | None = None
    ) -> None:
        self._client = client
        self._config = config
        self._report = report or _to_stderr
        self._lock = threading.Lock()
        self._pulled: set[str] = set()
        self._ensured: set[str] = set()

    def ensure(self, image: str) -> None:
        """Pull an image by the policy, once a process, on this thread: Ctrl-C interrupts it.

        Raises:
            SubmitError: it cannot be pulled; with the engine's message.
        """
        with self._lock:
            if self._config.pull == "never" or image in self._ensured:
                return
            if self._config.pull == "always" or self._is_missing(image):
                self._pull(image)
            self._ensured.add(image)

    def pull_missing(self, image: str, error: MissingImageError) -> None:
        """Pull an image that the engine lacks, unless the policy is ``never``.

        Raises:
            SubmitError: it cannot be pulled; with the engine's message.
        """
        if self._config.pull == "never":
            msg = (
                f"the Docker engine has no image {image!r}, and FIBER_DOCKER_PULL is never; "
                f"run docker pull {image}, or docker build -t {image} FOLDER"
            )
            raise SubmitError(msg) from error
        with self._lock:
            if image not in self._pulled:
                self._pull(image)

    def _is_missing(self, image: str) -> bool:
        try:
            self._client.call("inspect an image", lambda api: api.inspect_image(image))
        except MissingImageError:
            return True
        except BackendError:
            # creating a container of it reports more
            return False
        return False

    def build(self, folder: str) -> str | None:
        """Build, tag and, where a registry is set, push the image of a folder; its name.

        None where the folder has no Dockerfile.

        Args:
            folder: the folder, or the Dockerfile in it that is meant.

        Raises:
            AmbiguousImageError: it has several.
            BackendError: a step of it failed.
        """
        from docker.utils import build

        path = file_of(folder, "Dockerfile", "*.docker")
        if path is None:
            return None
        context, dockerfile = path.parent, path.name
        ignore = context / ".dockerignore"
        excluded = ignore.read_text("utf-8").splitlines() if ignore.is_file() else []
        patterns = [line.strip() for line in excluded if line.strip() and line[:1] != "#"]
        with tempfile.TemporaryFile() as file:
            paths = build.exclude_paths(str(context), patterns, dockerfile=dockerfile)
            build.create_archive(
                str(context), files=sorted(paths), fileobj=file, gzip=False, extra_files=[]
            )
            file.seek(0)
            name = f"{_repository(context, self._config.registry)}:{_digest(file)}"
            file.seek(0)
            self._report(f"building {name} from {path}")
            options = {"tag": name, "dockerfile": dockerfile}
            self._follow(self._client.build(options, file), f"build {name}")
        if self._config.registry:
            self._push(name)
        return name

    def _pull(self, image: str) -> None:
        repository, tag = _parts(image)
        self._report(f"pulling {image}")
        try:
            answers = self._client.call(
                f"pull {image}",
                lambda api: api.pull(repository, tag=tag, stream=True, decode=True),
            )
            self._follow(answers, f"pull {image}")
        except BackendUnavailableError:
            raise
        except BackendError as error:
            msg = (
                f"image {image!r} is not on the Docker engine and cannot be pulled: {error}; "
                f"name another with FIBER_IMAGE or --image, or build it: "
                f"docker build -t {image} FOLDER"
            )
            raise SubmitError(msg) from error
        self._pulled.add(image)

    def _push(self, image: str) -> None:
        repository, tag = _parts(image)
        self._report(f"pushing {image}")
        answers = self._client.call(
            f"push {image}", lambda api: api.push(repository, tag=tag, stream=True, decode=True)
        )
        self._follow(answers, f"push {image}")

    def _follow(self, answers: Iterable[Mapping[str, Any]], action: str) -> None:
        with self._client.translate_errors(action):
            for answer in answers:
                if "error" in answer:
                    msg = f"the Docker engine could not {action}: {str(answer['error']).strip()}"
                    raise BackendError(msg)
                # each layer's progress bar would be hundreds of lines
                text = str(answer.get("stream") or "").strip()
                if not text and "progressDetail" not in answer:
                    text = str(answer.get("status") or "").strip()
                if text:
                    self._report(text)


def _parts(image: str) -> tuple[str, str | None]:
    """Repository, and tag or digest; without either the SDK would pull all tags."""
    try:
        found = Reference.parse(image)
    except ValueError as error:
        raise SubmitError(str(error)) from None
    return found.name, found.digest or found.tag or "latest"


def _repository(context: Path, registry: str | None) -> str:
    name = repository_for(context)
    return f"{registry.rstrip('/')}/{name}" if registry else f"fiber-{name}"


def _digest(file: Any) -> str:
    hashed = hashlib.sha256()
    while chunk := file.read(1 << 20):
        hashed.update(chunk)
    return hashed.hexdigest()[:12]


def _to_stderr(line: str) -> None:
    print(f"fiber: {line}", file=sys.stderr, flush=True)  # noqa: T201 - progress on a terminal
