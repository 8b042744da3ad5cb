"""Asks containers to end, and kills what is left of them after a while."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from typing import Any

import requests

from fiber.exceptions import BackendError, UnknownJobError
from fiber_docker.client import Client

__all__ = ["Graces"]

log = logging.getLogger("fiber")

#: seconds between two looks whether a container's first process listens to signals yet
_LOOK = 0.05


class Graces:
    """One thread for each container that was asked to end.

    Args:
        client: the engine.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self, job_id: str, grace: float) -> None:
        """SIGTERM now, SIGKILL after ``grace`` seconds; returns at once."""
        thread = threading.Thread(
            target=self._end, args=(job_id, grace), name="fiber-docker-grace", daemon=True
        )
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait until all that were asked to end have ended. Idempotent."""
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def _end(self, job_id: str, grace: float) -> None:
        deadline = time.monotonic() + grace
        try:
            self._until_it_listens(job_id, deadline)
            self._client.signal(job_id, signal.SIGTERM)
            if not self._has_ended(job_id, deadline - time.monotonic()):
                self._client.signal(job_id, signal.SIGKILL)
        except UnknownJobError:
            # one that is gone has ended
            return
        except BackendError as error:
            log.warning("fiber: job %s may not have been ended: %s", job_id, error)

    def _until_it_listens(self, job_id: str, deadline: float) -> None:
        """Wait for the first process to have a child: until then the system drops what it is sent.

        A first process gets no signal that it has not asked for.
        """
        found = self._client.inspect(job_id)
        if found["Config"]["Labels"].get("fiber.kind") == "bare":
            return
        while time.monotonic() < deadline:
            if not found["State"].get("Running") or self._processes(job_id) != 1:
                return
            # no event tells that a container's first process has set its handlers
            time.sleep(_LOOK)
            found = self._client.inspect(job_id)

    def _processes(self, job_id: str) -> int:
        answer: Any = {}
        with contextlib.suppress(BackendError):
            # it has ended meanwhile
            answer = self._client.call("list processes", lambda api: api.top(job_id))
        return len(answer.get("Processes") or ())

    def _has_ended(self, job_id: str, timeout: float) -> bool:
        if timeout <= 0:
            return False
        with self._client.asking("wait for a container", job_id):
            try:
                self._client.api.wait(job_id, timeout=timeout)
            except (requests.exceptions.Timeout, requests.exceptions.ConnectionError) as error:
                if "timed out" not in str(error).lower():
                    raise
                return False
        return True
