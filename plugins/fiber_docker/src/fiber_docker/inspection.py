"""Status of a container by ``docker inspect`` and the exit file of its first process.

Apart from :mod:`~fiber_docker.status`, which is pure.
"""

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
from fiber_docker.container import EXIT_FILE
from fiber_docker.status import from_inspect, is_ambiguous

__all__ = ["Inspector"]


class Inspector:
    """Inspects containers of one engine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @functools.cached_property
    def host(self) -> str:
        """The engine's name for its machine."""
        return str(self._client.call("report its info", lambda api: api.info()).get("Name", ""))

    def status(self, container: str, labels: Mapping[str, str] | None) -> JobStatus:
        """The status of a container; ambiguous exit codes are resolved by its exit file.

        Raises:
            UnknownJobError: there is no such container.
        """
        found = self._client.inspect(container)
        state = found.get("State", {})
        report = ""
        ended = state.get("Status") in ("exited", "dead", "stopped")
        program = (labels or {}).get("fiber.kind") == "program"
        if ended and program and is_ambiguous(int(state.get("ExitCode", 0))):
            report = self._exit_report(container)
        return from_inspect(found, report, self.host)

    def _exit_report(self, container: str) -> str:
        """Content of the exit file; empty where the first process was killed."""
        with contextlib.suppress(BackendError, FileNotFoundError, tarfile.TarError):
            data = b"".join(self._client.get(container, EXIT_FILE))
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    if file is not None:
                        return last_word(file.read(4096).decode("utf-8", "replace"))[0]
        return ""
