"""Statuses of jobs from the engine's answers about containers, and from the exit file of their first process.

Pure but for :class:`Inspector`, which asks.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import signal
import tarfile
from collections.abc import Mapping
from typing import Any

import attrs

from fiber._agent.supervisor.jobs import signal_name
from fiber.backend_parts.containers import arguments, timestamp
from fiber.backend_parts.feed import ended, exit_code, failed
from fiber.backend_parts.first import last_word
from fiber.exceptions import BackendError
from fiber.model import Job, JobState, JobStatus, Reason, ReasonKind
from fiber_docker.client import Client
from fiber_docker.container import EXIT_FILE

#: exit codes up to this are the program's own, whatever the engine
_PLAIN = 125
_STARTED_NOT = 127


def exit_status(
    code: int, *, oom: bool = False, report: str = "", error: str = "", host: str | None = None
) -> JobStatus:
    """The terminal status of a container that has ended.

    Args:
        code: the engine's exit code.
        oom: True where the engine says that it ran out of memory.
        report: content of its exit file: ``exit 137``, ``signal 9`` or ``start <message>``; empty for
            none.
        error: the engine's message, if there is one.
        host: the engine's name.
    """
    kind, _, rest = report.partition(" ")
    if kind == "start":
        return failed(ReasonKind.START, rest, code, host)
    # without a report: 128 and a signal's number, as engines and shells have it
    code = -int(rest) if kind == "signal" else code if kind else exit_code(code)
    if oom and code == -signal.SIGKILL:
        words = "it used more memory than it may, and was killed"
        return failed(ReasonKind.OOM, words, code, host)
    if code < 0:
        return ended(code, f"killed by {signal_name(-code)}", host)
    return ended(code, (error or f"ended with exit code {code}") if code else "", host)


def is_ambiguous(code: int) -> bool:
    """True for an exit code that may stand for a signal or a failed start."""
    return code > _PLAIN


def start_failure(words: str) -> JobStatus:
    """The status of a container whose first program could not be started."""
    return failed(ReasonKind.START, words, _STARTED_NOT)


def lost_with_engine(words: str) -> JobStatus:
    """The status of a container whose engine went away while it was being started."""
    return failed(ReasonKind.NODE_LOST, words, _STARTED_NOT)


def killed_unseen(status: JobStatus) -> JobStatus:
    """The status of a container that was found ended when the engine was back.

    An engine that restarts kills its containers, and so their end says nothing about what they did.
    """
    if status.reason != Reason(ReasonKind.SIGNAL, signal.SIGKILL):
        return status
    return attrs.evolve(
        status,
        reason=Reason(ReasonKind.NODE_LOST),
        message="its container was killed while the Docker engine was away",
    )


def failed_to_start(status: JobStatus) -> bool:
    """True for a job whose first program could not be started."""
    kind = None if status.reason is None else status.reason.kind
    if kind is ReasonKind.NODE_LOST:
        return status.exit_code == _STARTED_NOT
    return kind in (ReasonKind.START, ReasonKind.IMAGE)


def ended_before_start(signum: int) -> JobStatus:
    """The status of a job that was ended, as by a signal, before it was started."""
    return ended(-signum, "ended before it was started")


def from_inspect(found: Mapping[str, Any], report: str = "", host: str | None = None) -> JobStatus:
    """The status of a container that was inspected.

    Args:
        found: what the engine answered.
        report: content of its exit file.
        host: the engine's name.
    """
    state = found.get("State", {})
    status = str(state.get("Status", ""))
    error = str(state.get("Error") or "")
    if status == "created":
        # a failed start leaves its words, and a container that will never run
        if error:
            return start_failure(error)
        return JobStatus(state=JobState.PENDING, host=host, is_starting=True)
    if status in ("exited", "dead", "stopped", "removing"):
        code, oom = int(state.get("ExitCode", 0)), bool(state.get("OOMKilled"))
        return exit_status(code, oom=oom, report=report, error=error, host=host)
    return JobStatus(state=_state(status), host=host)


def from_list(item: Mapping[str, Any]) -> JobStatus | None:
    """The status of a container in a list; None where it has to be inspected."""
    status = str(item.get("State", ""))
    if status in ("exited", "stopped"):
        match = re.match(r"Exited \((\d+)\)", str(item.get("Status", "")))
        if match is None or is_ambiguous(int(match[1])):
            return None
        return exit_status(int(match[1]))
    if status in ("created", "dead", "removing"):
        return None
    return JobStatus(state=_state(status))


def job_of(
    backend: str, name: str, labels: Mapping[str, str], submitted: float | None = None
) -> Job:
    """The job of a container, from its name and labels."""
    return Job(
        id=name,
        name=labels.get("fiber.name", name),
        run_id=labels.get("fiber.run", ""),
        backend=backend,
        data={"container": name},
        argv=arguments(labels.get("fiber.argv", "[]")),
        submitted=submitted,
    )


def created_at(found: Any) -> float | None:
    """Time of creation in seconds: engines have a number in lists, and a text elsewhere."""
    return float(found) if isinstance(found, (int, float)) else timestamp(str(found or ""))


def _state(status: str) -> JobState:
    if status == "paused":
        return JobState.SUSPENDED
    if status in ("running", "restarting"):
        return JobState.RUNNING
    return JobState.UNKNOWN


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
