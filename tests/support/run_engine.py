"""One Docker engine for several test processes: ``run_engine.py [--archive FILE] [--] [COMMAND …]``.

It starts an engine with the tests' image (see ``dockerd``), and then

* runs COMMAND with the variable ``TEST_DOCKERD`` set, and exits with its exit code;
* or, without a COMMAND, prints the variable as one line of JSON, ``{"TEST_DOCKERD": "…"}``, and waits
  until its standard input ends.

SIGTERM, SIGINT and the end of the process that started it end it too, and COMMAND first. The engine,
its containers, folder and bridge are gone then. The image has the Python that runs this, and what is
installed there: take that of the tests' environment. pytest processes of another version of Python
start engines of their own. Where no engine can be started, COMMAND runs without the variable.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

import dockerd

#: seconds for the command to end after SIGTERM
_PATIENCE = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Start a Docker engine for tests.")
    parser.add_argument("--archive", type=Path, help="file system of the image; made if not given")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    with _engine(given.archive) as variables:
        if command:
            return _run(command, variables)
        print(json.dumps(variables), flush=True)
        sys.stdin.buffer.read()
    return 0


@contextlib.contextmanager
def _engine(archive: Path | None) -> Iterator[Mapping[str, str]]:
    """The variables of an engine that runs meanwhile."""
    if why_not := dockerd.missing():
        print(f"no Docker engine: {why_not}", file=sys.stderr)
        yield {}
        return
    _end_with(os.getppid())
    with dockerd.started(ready=archive) as engine:
        try:
            yield {dockerd.VARIABLE: engine.variable()}
        finally:
            _ignore_signals()


def _run(command: list[str], variables: Mapping[str, str]) -> int:
    """Run the command to its end, or end it with this program; its exit code as a shell has it."""
    with subprocess.Popen(command, env={**os.environ, **variables}) as process:
        try:
            code = process.wait()
        except SystemExit:
            _ignore_signals()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
            raise
    return code if code >= 0 else 128 - code


def _end(number: int, frame: FrameType | None) -> None:
    _ignore_signals()
    sys.exit(128 + number)


def _ignore_signals() -> None:
    """What ends this program is not to be ended halfway."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _end_with(parent: int) -> None:
    """Have this program end when a process does."""
    descriptor = os.pidfd_open(parent)

    def watch() -> None:
        # PR_SET_PDEATHSIG would tell of the end of the thread that started us
        select.select([descriptor], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
