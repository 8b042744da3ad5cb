"""The journal of a run's jobs on one host, by which other processes know them.

``jobs.jsonl`` in the run directory has one JSON object a line: ``submitted``, ``started`` (with the
start time that makes a process id unmistakable) and ``ended``. Supervisors append to it;
:mod:`~fiber._agent.supervisor.journal_reader` reads it without them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fiber._agent.supervisor.jobs import Owner
from fiber.backend_parts.liveness import Owner as Process
from fiber.backend_parts.liveness import start_time
from fiber.model import JobSpec, ProcessStatus

__all__ = ["JOURNAL", "Journal"]

#: name of the file in a run directory
JOURNAL = "jobs.jsonl"


class Journal:
    """Appends to the journal.

    Args:
        directory: the run directory.
        on_failure: called once with a sentence when it cannot be written.
    """

    def __init__(self, directory: str, on_failure: Callable[[str], None]) -> None:
        self._path = Path(directory, JOURNAL)
        self._on_failure = on_failure
        self._descriptor: int | None = None
        self._broken = False
        self._supervisor = Process.current()

    def open(self) -> int | None:
        """Open the file; returns its descriptor, which the caller owns, or None."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            self._fail(error)
        return self._descriptor

    def submitted(self, job_id: str, spec: JobSpec, owner: Owner, host: str) -> None:
        """A job was taken on."""
        self._append(
            {
                "event": "submitted",
                "job": job_id,
                "name": spec.name,
                "run": spec.run_id,
                "argv": list(spec.argv),
                "processes": spec.processes,
                "parent": None if owner is None else owner[0],
                "host": host,
                "supervisor": list(self._supervisor),
                "time": time.time(),
            }
        )

    def started(self, job_id: str, index: int, pid: int) -> None:
        """A process of it was started."""
        self._append(
            {
                "event": "started",
                "job": job_id,
                "index": index,
                "pid": pid,
                "start_time": start_time(pid),
            }
        )

    def ended(self, job_id: str, process: ProcessStatus) -> None:
        """A process of it ended."""
        reason = process.reason
        self._append(
            {
                "event": "ended",
                "job": job_id,
                "index": process.index,
                "state": process.state.value,
                "reason": None if reason is None else reason.kind.value,
                "number": None if reason is None else reason.number,
                "exit_code": process.exit_code,
                "message": process.message,
                "log_tail": list(process.log_tail),
                "peak_memory": process.peak_memory,
                "time": time.time(),
            }
        )

    def _append(self, event: Mapping[str, Any]) -> None:
        if self._descriptor is None or self._broken:
            return
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        try:
            if os.write(self._descriptor, line) < len(line):
                msg = "the disk is full"
                raise OSError(msg)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._broken = True
        self._on_failure(f"the journal {self._path} is incomplete from here: {error}")
