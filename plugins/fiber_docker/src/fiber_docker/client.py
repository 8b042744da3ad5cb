"""Calls of the engine's API through the SDK, with its errors in Fiber's words."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import docker
import requests
import urllib3
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from fiber.exceptions import BackendError, BackendUnavailableError, SubmitError, UnknownJobError
from fiber_docker import endpoint
from fiber_docker.config import DockerConfig
from fiber_docker.stream import Stream

__all__ = ["Client", "MissingImageError", "close_stream", "words_of"]

#: seconds for which the engine may think about one call
_TIMEOUT = 60.0
#: seconds for somebody else to remove a container
_REMOVAL = 10.0
#: calls that may be on their way at once; more of them wait for a connection
_CONNECTIONS = 32
#: Docker's words and Podman's, which comes without a code of its own
_SAYS_NOT_RUNNING = re.compile("not running|can only kill running containers")
_GONE = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    OSError,
)


class MissingImageError(SubmitError):
    """The engine does not have that image."""


class Client:
    """One engine; connected on first use, thread-safe.

    Args:
        config: which engine; else the one that the docker command would use.
    """

    def __init__(self, config: DockerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._api: Any = None
        #: how the engine is named in messages
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
                with self.asking("connect"):
                    self._api = self._connect()
            return self._api

    def _connect(self) -> Any:
        options: dict[str, Any] = {
            "version": "auto",
            "timeout": _TIMEOUT,
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
        named = environ.get("DOCKER_HOST") or ContextAPI.kwargs_from_context(
            environment=environ
        ).get("base_url")
        # the SDK's own word for a socket has one more scheme before it
        self.url = (named or self.url).removeprefix("http+")
        if self.url.startswith("unix://"):
            # the SDK would try three times and leave three sockets
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_TIMEOUT)
                probe.connect(self.url.removeprefix("unix://"))
        client = docker.from_env(environment=environ, **options)
        return client.api

    @contextlib.contextmanager
    def asking(
        self, what: str, job: str | None = None, error: type[BackendError] = BackendError
    ) -> Iterator[None]:
        """Within, what the SDK raises becomes an error of Fiber's.

        Args:
            what: what the engine was asked to do.
            job: the job that it was asked about.
            error: what a refusal is.
        """
        try:
            yield
        except ImageNotFound as failure:
            raise MissingImageError(words_of(failure)) from failure
        except NotFound as failure:
            if job is not None:
                msg = f"there is no job {job} on the Docker engine at {self.url}"
                raise UnknownJobError(msg) from failure
            msg = f"the Docker engine refused to {what}: {words_of(failure)}"
            raise error(msg) from failure
        except APIError as failure:
            msg = f"the Docker engine refused to {what}: {words_of(failure)}"
            raise error(msg) from failure
        except (*_GONE, DockerException) as failure:
            msg = (
                f"the Docker engine at {self.url} cannot be asked to {what}: {_short(failure)}; "
                f"see whether `docker info` works, and set DOCKER_HOST or FIBER_DOCKER_HOST"
            )
            raise BackendUnavailableError(msg) from failure

    def close(self) -> None:
        """Close all connections; what is asked later connects again."""
        with self._lock:
            api, self._api = self._api, None
        if api is not None:
            api.close()

    # -- containers

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container; its id.

        Raises:
            MissingImageError: the engine lacks the image.
            SubmitError: it was refused.
        """
        with self.asking(f"create {name}", error=SubmitError):
            return str(self.api.create_container_from_config(dict(body), name=name)["Id"])

    def start(self, container: str, name: str) -> None:
        """Start a created container.

        Raises:
            SubmitError: its first program cannot be started.
        """
        with self.asking(f"start {name}", error=SubmitError):
            self.api.start(container)

    def attach(self, container: str, *, stdin: bool, output: bool) -> Stream:
        """The standard streams of a container, from its start."""
        params = {"stream": 1, "stdin": int(stdin), "stdout": int(output), "stderr": int(output)}
        with self.asking("attach"):
            return Stream(self.api.attach_socket(container, params=params))

    def inspect(self, job: str) -> dict[str, Any]:
        """All that the engine knows of a container."""
        with self.asking("inspect a container", job):
            return dict(self.api.inspect_container(job))

    def containers(self, *labels: str) -> list[dict[str, Any]]:
        """Containers with all these labels, ended ones included."""
        with self.asking("list containers"):
            return list(self.api.containers(all=True, filters={"label": list(labels)}))

    def signal(self, job: str, signum: int) -> None:
        """Send a signal to a container's first process; one that does not run is no error."""
        with contextlib.suppress(_NotRunning), self.asking("signal a container", job):
            try:
                self.api.kill(job, signal=signum)
            except APIError as error:
                if error.status_code == 409 or _SAYS_NOT_RUNNING.search(words_of(error)):
                    raise _NotRunning from error
                raise

    def remove(self, container: str) -> None:
        """End and remove a container; one that is gone is no error."""
        with self.asking("remove a container"):
            try:
                self.api.remove_container(container, v=True, force=True)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:
                    raise
                # somebody else is at it, and until they are done it may still run
                with contextlib.suppress(NotFound, requests.RequestException):
                    self.api.wait(container, timeout=_REMOVAL, condition="removed")

    def put(self, container: str, folder: str, archive: bytes | BinaryIO) -> None:
        """Unpack an archive into a container's folder."""
        with self.asking("copy into a container"):
            self.api.put_archive(container, folder, archive)

    def get(self, container: str, path: str) -> Iterator[bytes]:
        """A file or folder of a container, as an archive.

        Raises:
            FileNotFoundError: it is not there.
        """
        chunks = None
        with self.asking("copy from a container"), contextlib.suppress(NotFound):
            chunks, _ = self.api.get_archive(container, path)
        if chunks is None:
            raise FileNotFoundError(path)
        with self.asking("go on copying from a container"):
            yield from chunks

    def logs(self, job: str, *, tail: int | None, follow: bool) -> Any:
        """What a container wrote, in pieces; with a method ``close``."""
        with self.asking("read logs", job):
            return self.api.logs(
                job,
                stream=True,
                follow=follow,
                tail="all" if tail is None else tail,
            )

    # -- the engine

    def call(self, what: str, function: Callable[[Any], Any]) -> Any:
        """Any other call of the SDK.

        Args:
            what: what it does, for messages.
            function: is given the SDK's client.
        """
        with self.asking(what):
            return function(self.api)

    def events(self, labels: Sequence[str], since: int) -> Any:
        """The stream of container events, decoded; with a method ``close``."""
        filters = {"type": ["container"], "label": list(labels)}
        with self.asking("tell events"):
            return self.api.events(since=since, filters=filters, decode=True)

    def build(self, options: Mapping[str, Any], context: BinaryIO) -> Iterator[dict[str, Any]]:
        """Build an image; what the engine says meanwhile."""
        with self.asking("build an image"):
            yield from self.api.build(
                fileobj=context, custom_context=True, decode=True, rm=True, **options
            )


def close_stream(stream: Any) -> None:
    """Close what :meth:`Client.logs` or :meth:`Client.events` returned, its socket too."""
    # what closing raises differs with the transport, and it is over in any case
    with contextlib.suppress(Exception):
        stream.close()
    response = getattr(stream, "_response", None)
    if response is not None:
        with contextlib.suppress(Exception):
            response.close()


class _NotRunning(Exception):  # noqa: N818 - a word within this module, no error
    """The container has ended, or was not started."""


def words_of(error: BaseException) -> str:
    """The engine's own words, without the address that was asked."""
    explanation = getattr(error, "explanation", None)
    if isinstance(explanation, bytes):
        explanation = explanation.decode("utf-8", "replace")
    return str(explanation or error).strip()


def _short(error: BaseException) -> str:
    # urllib3 wraps what the system said several times; the innermost words are the cause
    seen: BaseException = error
    while (inner := seen.__cause__ or seen.__context__) is not None:
        seen = inner
    return str(seen) or type(seen).__name__
