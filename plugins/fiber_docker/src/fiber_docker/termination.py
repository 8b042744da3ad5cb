"""Termination of containers: SIGTERM, then SIGKILL after a grace period.

Apart from the backend, so that its threads and the wait for signal handlers stand on their own.
"""

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

__all__ = ["Terminator"]

log = logging.getLogger("fiber")


class Terminator:
    """Terminates containers, with a thread (``fiber-docker-grace``) for each.

    Args:
        client: the engine.
        handler_check: seconds between two checks whether a first process handles signals yet.
    """

    def __init__(self, client: Client, handler_check: float) -> None:
        self._client = client
        self._handler_check = handler_check
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def terminate(self, job_id: str, grace: float) -> None:
        """Send SIGTERM now and SIGKILL after ``grace`` seconds; returns at once."""
        thread = threading.Thread(
            target=self._end, args=(job_id, grace), name="fiber-docker-grace", daemon=True
        )
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait until all of these containers have ended. Idempotent."""
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def _end(self, job_id: str, grace: float) -> None:
        deadline = time.monotonic() + grace
        try:
            self._wait_for_handlers(job_id, deadline)
            self._client.signal(job_id, signal.SIGTERM)
            if not self._has_ended(job_id, deadline - time.monotonic()):
                self._client.signal(job_id, signal.SIGKILL)
        except UnknownJobError:
            # one that is gone has ended
            return
        except BackendError as error:
            log.warning("fiber: job %s may not have been ended: %s", job_id, error)

    def _wait_for_handlers(self, job_id: str, deadline: float) -> None:
        """Wait until the first process has a child, and so has set its signal handlers.

        Linux drops signals that PID 1 of a namespace has no handler for.
        """
        found = self._client.inspect(job_id)
        if found["Config"]["Labels"].get("fiber.kind") == "bare":
            return
        while time.monotonic() < deadline:
            if not found["State"].get("Running") or self._process_count(job_id) != 1:
                return
            # there is no event for this
            time.sleep(self._handler_check)
            found = self._client.inspect(job_id)

    def _process_count(self, job_id: str) -> int:
        answer: Any = {}
        with contextlib.suppress(BackendError):
            # it has ended meanwhile
            answer = self._client.call("list processes", lambda api: api.top(job_id))
        return len(answer.get("Processes") or ())

    def _has_ended(self, job_id: str, timeout: float) -> bool:
        if timeout <= 0:
            return False
        with self._client.translate_errors("wait for a container", job_id):
            try:
                self._client.api.wait(job_id, timeout=timeout)
            except (requests.exceptions.Timeout, requests.exceptions.ConnectionError) as error:
                if "timed out" not in str(error).lower():
                    raise
                return False
        return True
