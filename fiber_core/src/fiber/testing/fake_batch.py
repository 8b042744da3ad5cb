"""Fake batch system: a queue of this machine with three commands, for backends of real ones to be tried.

The queue is a folder, which the variable :data:`FOLDER` names. Its commands are as those of batch
systems are: they know nothing of Fiber, take a job script, and tell nobody of events.

======================================  ========================================================
``python -m fiber.testing.fake_batch``
``sub --name NAME < SCRIPT``            puts a job into the queue, prints its id
``stat``                                a line a job: ``ID STATE CODE NAME``, separated by tabs
``cancel [--signal N] ID ...``          sends a signal to the scripts of jobs; those that wait leave
``cancel [--signal N] --name NAME``     the same for all jobs with a name
======================================  ========================================================

A state is ``queued``, ``running`` or ``done``, a code an exit code or minus a signal. As many jobs run at once
as the variable :data:`SLOTS` says. SIGKILL ends all that a job has started. Where the folder is not
there, no command answers.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

#: variable that names the folder of the queue
FOLDER = "FAKE_BATCH_FOLDER"
#: variable with the number of jobs that run at once
SLOTS = "FAKE_BATCH_SLOTS"
#: variable of each job: its id
JOB = "FAKE_BATCH_JOB"


def main(words: Sequence[str]) -> int:
    """Run a command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="fake_batch")
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("sub")
    sub.add_argument("--name", default="job")
    commands.add_parser("stat")
    cancel = commands.add_parser("cancel")
    cancel.add_argument("--signal", type=int, default=int(signal.SIGTERM))
    cancel.add_argument("--name")
    cancel.add_argument("ids", nargs="*")
    run = commands.add_parser("run")
    run.add_argument("id")
    asked = parser.parse_args(words)
    folder = os.environ.get(FOLDER, "")
    if not Path(folder).is_dir():
        sys.stderr.write(f"the queue does not answer: there is no folder {folder!r}\n")
        return 1
    queue = _Queue(Path(folder))
    if asked.command == "sub":
        sys.stdout.write(f"{queue.submit(asked.name, sys.stdin.read())}\n")
    elif asked.command == "stat":
        for job in queue.jobs():
            sys.stdout.write("\t".join((job.name, *job.state(), job.title)) + "\n")
    elif asked.command == "run":
        return queue.run(queue.job(asked.id))
    else:
        named = [job.name for job in queue.jobs() if asked.name and job.title == asked.name]
        return queue.cancel([*asked.ids, *named], asked.signal)
    return 0


class _Job:
    """A job's files: its script, its name for people and its state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @property
    def title(self) -> str:
        return (self.path / "title").read_text(encoding="utf-8")

    def state(self) -> tuple[str, str]:
        """Its state, and its code where it is over."""
        state, _, code = (self.path / "state").read_text(encoding="utf-8").partition(" ")
        return state, code or "-"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold its state: a job that is cancelled does not begin meanwhile."""
        with open(self.path / "lock", "w", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def set(self, state: str) -> None:
        new = self.path / "state.new"
        new.write_text(state, encoding="utf-8")
        new.replace(self.path / "state")


class _Queue:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def jobs(self) -> Iterator[_Job]:
        paths = [path for path in self._folder.iterdir() if (path / "state").exists()]
        return (_Job(path) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns))

    def job(self, job_id: str) -> _Job:
        return _Job(self._folder / job_id)

    def submit(self, title: str, script: str) -> str:
        job = self.job(uuid.uuid4().hex[:12])
        job.path.mkdir()
        (job.path / "title").write_text(title, encoding="utf-8")
        (job.path / "script").write_text(script, encoding="utf-8")
        (job.path / "script").chmod(0o700)
        job.set("queued")
        # nothing of the submitter's but where the queue is
        kept = {name: os.environ[name] for name in (FOLDER, SLOTS) if name in os.environ}
        subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, "run", job.name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**kept, JOB: job.name, "PATH": "/usr/bin:/bin"},
            start_new_session=True,
            cwd="/",
        )
        return job.name

    def run(self, job: _Job) -> int:
        """Run a job once there is room for it, and see that nothing of it is left."""
        with self._room(job):
            with job.changing():
                if job.state()[0] == "done":
                    return 0
                script = subprocess.Popen([job.path / "script"], start_new_session=True)
                (job.path / "pid").write_text(str(script.pid), encoding="ascii")
                job.set("running")
            code = script.wait()
            # SIGKILL may have come to the script alone
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(script.pid, signal.SIGKILL)
            _kill_all(job.name)
            job.set(f"done {code}")
        return 0

    @contextlib.contextmanager
    def _room(self, job: _Job) -> Iterator[None]:
        numbers = range(int(os.environ.get(SLOTS, "16")))
        with contextlib.ExitStack() as stack:
            while job.state()[0] != "done":
                for number in numbers:
                    path = self._folder / f"slot-{number}"
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        os.close(descriptor)
                        continue
                    stack.callback(os.close, descriptor)
                    yield
                    return
                # no event tells of one of several locks
                time.sleep(0.02)
            yield

    def cancel(self, ids: Sequence[str], signum: int) -> int:
        code = 0
        for job_id in ids:
            job = self.job(job_id)
            if not job.path.is_dir():
                sys.stderr.write(f"there is no job {job_id}\n")
                code = 1
                continue
            with job.changing():
                state, _ = job.state()
                if state == "queued":
                    job.set(f"done {-signum}")
                elif state == "running":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int((job.path / "pid").read_text(encoding="ascii")), signum)
        return code


def _kill_all(job_id: str) -> None:
    """Kill the processes that have a job's id in their environment."""
    wanted = f"{JOB}={job_id}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        # they end meanwhile, and some are not ours
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if pid != os.getpid() and wanted in path.read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
