"""Program that runs one job on the node that its batch system gave it, and writes how it ended.

The job script starts it with the run's folder and the job's key. It reads what to run from there, so
that odd names and values need no quoting; writes the mark of the start once the program runs, and the
mark of the end after it. With ``--beside`` before them and a program behind them it runs that
program with the job's environment and directory instead, and marks nothing.

It is copied into the run's folder beside ``first.py`` and runs under the job's Python, which need
not have Fiber, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["main"]

#: exit code of shells for a program that cannot be run
_NOT_EXECUTABLE = 126


def main(words: Sequence[str]) -> int:
    """Run the job, or a program beside it; returns the exit code."""
    beside = words[0] == "--beside"
    folder, key, *argv = words[1:] if beside else words
    with open(os.path.join(folder, "jobs", key + ".json"), encoding="utf-8") as file:
        job = json.load(file)
    host = os.environ.get(job["host_variable"]) or socket.gethostname()
    # one that names none is where its submitter is, if that is seen here
    places = (
        [job["cwd"]] if job["cwd"] else [job["here"], {**os.environ, **job["env"]}.get("HOME"), "/"]
    )
    failure = _prepare(job["env"], job["unset"], [place for place in places if place])
    if beside:
        if failure:
            sys.stderr.write("fiber: " + failure + "\n")
            return _NOT_EXECUTABLE
        os.execvp(argv[0], argv)  # noqa: S606 - the program that was asked for
    if job["private"]:
        os.environ["FIBER_BOOTSTRAP"] = "file:" + os.path.join(folder, "private", key)
    unfinished = os.path.join(folder, "marks", "." + key + ".ended")
    code = _NOT_EXECUTABLE
    sys.path.insert(0, folder)
    first = importlib.import_module("first")

    if failure:
        first.report(unfinished, "start " + failure)
        sys.stderr.write("fiber: " + failure + "\n")
    else:
        listener = _listen() if job["streams"] else None

        def mark(pid: int) -> None:
            started = {"pid": pid, "host": host}
            if listener is not None:
                started["port"] = listener.getsockname()[1]
            _write(folder, key + ".started", started)

        code = int(first.main([unfinished, "program", "-1", *job["argv"]], None, mark))
    # whoever sees the mark sees all of it
    with contextlib.suppress(OSError):
        os.replace(unfinished, os.path.join(folder, "marks", key + ".ended"))
    return code


def _prepare(env: Mapping[str, str], unset: Sequence[str], places: Sequence[str]) -> str:
    """Take on the environment of a job and the first directory there is; why not, where that failed."""
    for name in unset:
        os.environ.pop(name, None)
    try:
        os.environ.update(env)
    except ValueError as error:
        return str(error)
    why = ""
    for place in places:
        try:
            os.chdir(place)
        except (OSError, ValueError) as error:
            why = "cannot run in " + repr(place) + ": " + str(error)
        else:
            return ""
    return why


def _listen() -> socket.socket:
    """Bind a port of loopback that the program inherits, and say so in its environment."""
    listener = socket.socket()
    listener.setblocking(True)
    listener.bind(("127.0.0.1", 0))
    listener.set_inheritable(True)
    os.environ["FIBER_REACH"] = "streams:fd:" + str(listener.fileno())
    return listener


def _write(folder: str, name: str, value: Mapping[str, Any]) -> None:
    """Write a mark, whole or not at all."""
    unfinished = os.path.join(folder, "marks", "." + name)
    # a job whose folder was removed, or has no room, runs all the same
    with contextlib.suppress(OSError):
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump({**value, "at": time.time()}, file)
        os.replace(unfinished, os.path.join(folder, "marks", name))


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
