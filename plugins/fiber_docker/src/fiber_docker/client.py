"""Calls of the engine's API through the SDK, with its errors as Fiber's exceptions."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import docker
import requests
import urllib3
from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from fiber.backend_parts.containers import innermost
from fiber.backend_parts.logfile import split_lines
from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError, UnknownJobError
from fiber_docker import endpoint
from fiber_docker.config import DockerConfig, DockerTiming
from fiber_docker.stream import Stream

log = logging.getLogger("fiber")

#: size of the connection pool: calls at once; others wait for a connection
_CONNECTIONS = 32
#: texts of Docker, and of Podman, which has no status code for it
_NOT_RUNNING_TEXT = re.compile("not running|can only kill running containers")
#: engines here, and those of tunnels that end here
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
_CONNECTION_ERRORS = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    OSError,
)

# what to do where no engine answers: here, and in a container that was started without one
_UNREACHED = "see whether `docker info` works, and set DOCKER_HOST or FIBER_DOCKER_HOST"
_NOT_SHARED = (
    "a container gets the engine's socket only if it is asked for, since whoever has it is root of "
    "the engine's machine: give `fiber run` the option --share-engine programs, or -e "
    "FIBER_BACKEND=local for workers in the program's own container"
)


class MissingImageError(SubmitError):
    """The engine does not have the image."""


class Client:
    """Client of one engine; connects on first use, thread-safe.

    Args:
        config: names the engine; else the docker command's own.
        timing: durations.
    """

    def __init__(self, config: DockerConfig, timing: DockerTiming = DockerTiming()) -> None:
        self._config = config
        self._timing = timing
        self._lock = threading.Lock()
        self._api: Any = None
        #: URL of the engine, for messages
        self.url = config.host or os.environ.get("DOCKER_HOST") or f"unix://{endpoint.SOCKET}"

    # -- connecting

    @property
    def api(self) -> Any:
        """The SDK's client.

        Raises:
            BackendUnavailableError: no engine answers.
        """
        with self._lock:
            if self._api is None:
                with self.translate_errors("connect"):
                    self._api = self._connect()
            return self._api

    def _connect(self) -> Any:
        options: dict[str, Any] = {
            "version": "auto",
            "timeout": self._timing.answer,
            "max_pool_size": _CONNECTIONS,
        }
        environ = dict(os.environ)
        if self._config.host:
            environ["DOCKER_HOST"] = self._config.host
        elif self._config.context:
            environ.pop("DOCKER_HOST", None)
            environ["DOCKER_CONTEXT"] = self._config.context
        elif not endpoint.names_an_engine(self._config, environ) and not (
            endpoint.has_default_socket()
        ):
            podman = endpoint.podman_socket(environ)
            if podman is not None:
                environ["DOCKER_HOST"] = podman
        named = environ.get("DOCKER_HOST")
        if not named:
            context = environ.get("DOCKER_CONTEXT") or get_current_context_name()
            if ContextAPI.get_context(context) is None:
                # the SDK would take the default one
                msg = (
                    f"there is no docker context {context!r}; `docker context ls` lists them: set "
                    "FIBER_DOCKER_CONTEXT, DOCKER_CONTEXT or DOCKER_HOST, or run `docker context use`"
                )
                raise BackendUnavailableError(msg)
            named = ContextAPI.kwargs_from_context(context).get("base_url")
        # the SDK puts one more scheme before a socket's
        self.url = (named or self.url).removeprefix("http+")
        if self.url.startswith("unix://"):
            # the SDK would try three times and leave three sockets
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(self._timing.answer)
                probe.connect(self.url.removeprefix("unix://"))
        client = docker.from_env(environment=environ, **options)
        where = urlsplit(client.api.base_url)
        if where.scheme == "http" and not _LOOPBACK.fullmatch(where.hostname or ""):
            log.warning(
                "fiber: the Docker engine at %s is reached without TLS: who is on the way reads the "
                "keys of the run, and who reaches the port is root there; use DOCKER_HOST=ssh://…, "
                "or TLS by DOCKER_TLS_VERIFY and DOCKER_CERT_PATH",
                self.url,
            )
        return client.api

    @contextlib.contextmanager
    def translate_errors(
        self, action: str, job: str | None = None, error: type[BackendError] = BackendError
    ) -> Iterator[None]:
        """In this block, raise exceptions of the SDK as Fiber's.

        Args:
            action: the request as a phrase, such as "list containers", for messages.
            job: the job that it is about: 404 means that it is unknown.
            error: class of other refusals.
        """
        try:
            yield
        except ImageNotFound as failure:
            raise MissingImageError(engine_message(failure)) from failure
        except APIError as failure:
            if job is not None and isinstance(failure, NotFound):
                msg = f"there is no job {job} on the Docker engine at {self.url}"
                raise UnknownJobError(msg) from failure
            msg = f"the Docker engine refused to {action}: {engine_message(failure)}"
            raise error(msg) from failure
        except (*_CONNECTION_ERRORS, DockerException) as failure:
            msg = (
                f"the Docker engine at {self.url} cannot be asked to {action}: {innermost(failure)}; "
                f"{_NOT_SHARED if endpoint.has_no_engine(os.environ) else _UNREACHED}"
            )
            raise BackendUnavailableError(msg) from failure

    def close(self) -> None:
        """Close all connections; a later call connects again."""
        with self._lock:
            api, self._api = self._api, None
        if api is not None:
            api.close()

    # -- containers

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container; returns its id.

        Raises:
            MissingImageError: the engine lacks the image.
            SubmitError: it was refused.
        """
        with self.translate_errors(f"create {name}", error=SubmitError):
            return str(self.api.create_container_from_config(dict(body), name=name)["Id"])

    def start(self, container: str, name: str) -> None:
        """Start a created container.

        Raises:
            SubmitError: its first program cannot be started.
        """
        with self.translate_errors(f"start {name}", error=SubmitError):
            self.api.start(container)

    def attach(self, container: str, *, stdin: bool, output: bool) -> Stream:
        """The standard streams of a container, from its start."""
        params = {"stream": 1, "stdin": int(stdin), "stdout": int(output), "stderr": int(output)}
        with self.translate_errors("attach"):
            return Stream(self.api.attach_socket(container, params=params))

    def inspect(self, job: str) -> dict[str, Any]:
        """Inspect a container: the engine's answer, as ``docker inspect`` shows it."""
        with self.translate_errors("inspect a container", job):
            return dict(self.api.inspect_container(job))

    def containers(self, *labels: str) -> list[dict[str, Any]]:
        """Containers with all these labels, ended ones included."""
        with self.translate_errors("list containers"):
            return list(self.api.containers(all=True, filters={"label": list(labels)}))

    def signal(self, job: str, signum: int) -> None:
        """Send a signal to a container's first process; one that does not run is no error."""
        with contextlib.suppress(_NotRunning), self.translate_errors("signal a container", job):
            try:
                self.api.kill(job, signal=signum)
            except APIError as error:
                if error.status_code == 409 or _NOT_RUNNING_TEXT.search(engine_message(error)):
                    raise _NotRunning from error
                raise

    def stop(self, job: str, grace: float) -> None:
        """Have the engine send SIGTERM, and SIGKILL after the grace; returns once it has ended."""
        with self.translate_errors("stop a container", job):
            # the engine takes whole seconds
            self.api.stop(job, timeout=max(0, math.ceil(grace)))

    def remove(self, container: str) -> None:
        """End and remove a container; one that is gone is no error."""
        with self.translate_errors("remove a container"):
            try:
                self.api.remove_container(container, v=True, force=True)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:
                    raise
                # another removal is under way, and until it is done the container may run
                with contextlib.suppress(NotFound, requests.RequestException):
                    self.api.wait(container, timeout=self._timing.removal, condition="removed")

    def put(self, container: str, folder: str, archive: bytes | BinaryIO) -> None:
        """Unpack an archive into a container's folder."""
        with self.translate_errors("copy into a container"):
            self.api.put_archive(container, folder, archive)

    def get(self, container: str, path: str) -> Iterator[bytes]:
        """A file or folder of a container, as an archive.

        Raises:
            FileNotFoundError: it is not there.
        """
        chunks = None
        with self.translate_errors("copy from a container"), contextlib.suppress(NotFound):
            chunks, _ = self.api.get_archive(container, path)
        if chunks is None:
            raise FileNotFoundError(path)
        with self.translate_errors("go on copying from a container"):
            yield from chunks

    def logs(self, job: str, *, tail: int | None, follow: bool) -> Any:
        """Stream of a container's output, an iterator of bytes with a method ``close``."""
        with self.translate_errors("read logs", job):
            return self.api.logs(
                job,
                stream=True,
                follow=follow,
                tail="all" if tail is None else tail,
            )

    # -- the engine

    def call(self, action: str, function: Callable[[Any], Any]) -> Any:
        """Any other call of the SDK.

        Args:
            action: the request as a phrase, for messages.
            function: called with the SDK's client.
        """
        with self.translate_errors(action):
            return function(self.api)

    def events(self, labels: Sequence[str], since: int) -> Any:
        """Stream of container events, an iterator of dictionaries with a method ``close``."""
        filters = {"type": ["container"], "label": list(labels)}
        with self.translate_errors("stream events"):
            return self.api.events(since=since, filters=filters, decode=True)

    def build(self, options: Mapping[str, Any], context: BinaryIO) -> Iterator[dict[str, Any]]:
        """Build an image; yields the engine's progress messages."""
        with self.translate_errors("build an image"):
            yield from self.api.build(
                fileobj=context, custom_context=True, decode=True, rm=True, **options
            )


def close_stream(stream: Any) -> None:
    """Close a stream of :meth:`Client.logs` or :meth:`Client.events`, with its socket."""
    # what closing raises differs with the transport, and it is over in any case
    with contextlib.suppress(Exception):
        stream.close()
    response = getattr(stream, "_response", None)
    if response is not None:
        with contextlib.suppress(Exception):
            response.close()


def log_lines(client: Client, pieces: Any) -> Iterator[str]:
    """Yield the lines of a stream of output, without their newlines.

    Args:
        client: translates errors of the stream.
        pieces: the stream; closed at the end, or when the caller has enough.
    """
    try:
        with client.translate_errors("go on with logs"):
            yield from split_lines(pieces)
    finally:
        close_stream(pieces)


class _NotRunning(Exception):  # noqa: N818 - control flow within this module, no error
    """The container has ended, or was not started."""


def engine_message(error: BaseException) -> str:
    """The engine's own message, without the URL of the request."""
    explanation = getattr(error, "explanation", None)
    if isinstance(explanation, bytes):
        explanation = explanation.decode("utf-8", "replace")
    return str(explanation or error).strip()
