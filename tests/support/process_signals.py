"""Processes found, and signals sent to children, behind Fiber's back.

A child's pid is that of its container's namespace, where it has one, and differs on the host.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil


def with_variable(name: str, value: str) -> Iterator[psutil.Process]:
    """Processes that have a variable in their environment, and have not ended."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(name) == value:
                yield process


def reporter_of(supervisor: int) -> int:
    """The process in a program's group that reports SIGINT to the supervisor, by pipes both have."""
    program = psutil.Process(supervisor).ppid()
    pipes = _pipes(supervisor)
    others = (process.pid for process in psutil.process_iter() if process.pid != program)
    (found,) = (pid for pid in others if _group(pid) == os.getpgid(program) and pipes & _pipes(pid))
    return found


def _group(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return None


def _pipes(pid: int) -> set[str]:
    """Pipes of a process save those of its standard streams."""
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if int(link.name) > 2:
                    found.add(str(link.readlink()))
    return {name for name in found if name.startswith("pipe:")}


def kill(process: BaseProcess) -> None:
    """Send SIGKILL to a child."""
    send(process, signal.SIGKILL)


def send(process: BaseProcess, signum: int) -> None:
    """Send a signal to a child that runs.

    Raises:
        ProcessLookupError: it has ended.
    """
    os.kill(host_pid(process), signum)


def host_pid(process: BaseProcess) -> int:
    """Find a child's pid in the namespace of this host, on any backend.

    Raises:
        ProcessLookupError: it has ended.
    """
    number = process.pid
    assert number is not None
    child: Any = process
    container = child._popen.job.data.get("container")
    return number if container is None else _in_container(container, number)


def _in_container(name: str, number: int) -> int:
    import docker

    with contextlib.closing(docker.from_env()) as client:
        try:
            first = client.api.inspect_container(name)["State"]["Pid"]
        except docker.errors.NotFound:
            raise ProcessLookupError from None
    if not first:
        raise ProcessLookupError
    with contextlib.suppress(psutil.NoSuchProcess):
        for found in psutil.Process(first).children(recursive=True):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{found.pid}/status").read_text()
                (numbers,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
                if int(numbers.split()[-1]) == number:
                    return int(found.pid)
    raise ProcessLookupError
