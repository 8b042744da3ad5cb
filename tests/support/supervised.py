"""A real supervisor for tests, and ways to wait for what its jobs do."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import waiting
from fiber._agent.supervisor.client import SupervisorClient
from fiber._agent.supervisor.messages import Accepted, SupervisorOptions
from fiber._agent.supervisor.start import start_supervisor
from fiber.model import JobSpec, JobStatus, Timing

PATIENCE = 30.0


class Supervised:
    """A supervisor with this process as its master."""

    def __init__(self, folder: Path, *, timing: Timing = Timing(), **options: Any) -> None:
        self.folder = folder
        self._accepted: list[str] = []
        self.statuses: dict[str, list[JobStatus]] = {}
        self.reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._news = threading.Condition()
        silence = options.pop("silence", 20.0)
        channel, self.process = start_supervisor(
            SupervisorOptions(
                **{
                    "run_id": "0badcafe",
                    "run_directory": str(folder),
                    "master": os.getpid(),
                    "host": socket.gethostname(),
                    "time_scale": timing.scale,
                    **options,
                }
            )
        )
        self.client = SupervisorClient(
            channel,
            on_status=self._on_status,
            on_notice=lambda _: None,
            on_end=self.reasons.put,
            process=self.process,
            silence=silence,
            name="supervised",
            timing=timing,
        )

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def submit(self, entry: str | Sequence[str], private: bytes = b"", **changes: Any) -> Accepted:
        """Start an entry by its name, or a program by its words."""
        is_entry = isinstance(entry, str)
        spec = JobSpec(
            **{
                "run_id": "0badcafe",
                "name": entry if is_entry else "program",
                "argv": ("x",) if is_entry else tuple(entry),
                "entry": f"supervised_entries:{entry}" if is_entry else None,
                "private": private,
                **changes,
            }
        )
        return self.client.submit(
            spec,
            environ=dict(os.environ),
            cwd=str(Path.cwd()),
            on_accepted=lambda accepted: self._accepted.append(accepted.job_id),
        )

    def run(self, entry: str | Sequence[str], private: bytes = b"", **changes: Any) -> JobStatus:
        """Start a job and wait for its end."""
        return self.end(self.submit(entry, private, **changes))

    def ready(self, entry: str, private: bytes = b"", **changes: Any) -> Accepted:
        """Start a job and wait until each of its processes has written ready."""
        accepted = self.submit(entry, private, **changes)
        self.lines(accepted, max(1, len(accepted.pids)))
        return accepted

    def end(self, accepted: Accepted) -> JobStatus:
        """Wait for the end of a job."""
        return self.until(accepted, lambda status: status.state.is_terminal)

    def end_jobs(self) -> None:
        """Kill all jobs, and forget what was heard of any: for the next test."""
        for job_id in self._accepted:
            self.client.kill(job_id)
        for job_id in self._accepted:
            self._until(job_id, lambda status: status.state.is_terminal)
        self._accepted.clear()
        self.statuses.clear()

    def settle(self) -> None:
        """Return once the supervisor has carried out all earlier requests of this channel."""
        self.client.preload(())

    def until(self, accepted: Accepted, there: Callable[[JobStatus], bool]) -> JobStatus:
        """Wait for a status of a job."""
        return self._until(accepted.job_id, there)

    def _until(self, job_id: str, there: Callable[[JobStatus], bool]) -> JobStatus:
        with self._news:
            found = self._news.wait_for(
                lambda: [one for one in self.statuses.get(job_id, ()) if there(one)], PATIENCE
            )
            if not found:
                raise TimeoutError(f"{job_id} only had {self.statuses.get(job_id)}")
            return found[0]

    def log(self, accepted: Accepted) -> str:
        """Output of a job so far."""
        path = self.folder / "logs" / f"{accepted.job_id}.log"
        return path.read_text() if path.exists() else ""

    def lines(self, accepted: Accepted, count: int) -> list[str]:
        """Wait for so many lines of a job."""
        deadline = time.monotonic() + PATIENCE
        while len(lines := self.log(accepted).splitlines()) < count:
            over = [s for s in self.statuses.get(accepted.job_id, []) if s.state.is_terminal]
            if time.monotonic() > deadline or (over and lines == self.log(accepted).splitlines()):
                raise TimeoutError(f"{accepted.job_id} only wrote {lines}: {over}")
            # a file has no event
            time.sleep(0.005)
        return lines

    def _on_status(self, job_id: str, status: JobStatus) -> None:
        with self._news:
            self.statuses.setdefault(job_id, []).append(status)
            self._news.notify_all()


def exit_code_of(function: Callable[[], int]) -> int:
    """Run a function in a fork of this process, and return what it returned."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        with contextlib.suppress(BaseException):
            os._exit(function())
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_alive(pid: int) -> bool:
    """True while there is such a process that has not ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return text.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def until_gone(*pids: int) -> None:
    """Wait for the end of processes that are no children of ours."""
    left = waiting.left(lambda: [pid for pid in pids if is_alive(pid)], PATIENCE)
    assert not left, f"still there: {left}"


#: first lines of a master: its words are read from the ``pipe`` of its process
_PROLOGUE = """
import os, signal, sys, time
sys.path[:] = [*{path!r}, sys.argv[1]]
from pathlib import Path
from supervised import Supervised

def report(*words):
    os.write(int(sys.argv[2]), (" ".join(map(str, words)) + "\\n").encode())
"""


@contextlib.contextmanager
def masters(folder: Path, template: str, **options: Any) -> Iterator[Callable[[str], Any]]:
    """Masters of supervisors as programs of their own, ended with the block.

    Args:
        folder: for their script; its first argument.
        template: the script, with ``{body}``; it may ``report`` words.
        **options: of ``subprocess.Popen``.

    Yields:
        a function that starts a master with a body; what it reports is read line by line from the
        attribute ``pipe`` of the process.
    """
    with contextlib.ExitStack() as stack:

        def start(body: str) -> Any:
            script = folder / "master.py"
            text = template.format(body=textwrap.dedent(body))
            script.write_text(_PROLOGUE.format(path=sys.path) + text)
            reader, writer = os.pipe()
            words = [sys.executable, str(script), str(folder), str(writer)]
            program: Any = subprocess.Popen(words, pass_fds=[writer], **options)
            os.close(writer)
            program.pipe = stack.enter_context(os.fdopen(reader))
            stack.enter_context(program)
            stack.callback(program.kill)
            return program

        yield start
