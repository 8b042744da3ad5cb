"""Asks the engine how one container stands, and its first process how its program ended."""

from __future__ import annotations

import contextlib
import functools
import io
import tarfile
from collections.abc import Mapping

from fiber.backend_parts.first import last_word
from fiber.exceptions import BackendError
from fiber.model import JobStatus
from fiber_docker.client import Client
from fiber_docker.container import END
from fiber_docker.status import from_inspect, needs_a_look

__all__ = ["Looks"]


class Looks:
    """Looks at containers of one engine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @functools.cached_property
    def host(self) -> str:
        """The engine's name for its machine."""
        return str(self._client.call("tell about itself", lambda api: api.info()).get("Name", ""))

    def status(self, container: str, labels: Mapping[str, str] | None) -> JobStatus:
        """The status of a container, as exact as it can be had.

        Raises:
            UnknownJobError: there is no such container.
        """
        found = self._client.inspect(container)
        state = found.get("State", {})
        word = ""
        ended = state.get("Status") in ("exited", "dead", "stopped")
        program = (labels or {}).get("fiber.kind") == "program"
        if ended and program and needs_a_look(int(state.get("ExitCode", 0))):
            word = self._word(container)
        return from_inspect(found, word, self.host)

    def _word(self, container: str) -> str:
        """What the first process wrote down; empty where it was killed."""
        with contextlib.suppress(BackendError, FileNotFoundError, tarfile.TarError):
            data = b"".join(self._client.get(container, END))
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    if file is not None:
                        return last_word(file.read(4096).decode("utf-8", "replace"))[0]
        return ""
