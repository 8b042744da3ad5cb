"""Network namespaces and the processes in them, by the command ``ip``; what tests left is removed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

__all__ = ["command", "free_subnet", "ip", "kill", "sweep", "sweep_folders"]


def free_subnet() -> str:
    """The first three numbers of addresses that nobody here has."""
    # the range for benchmarks, which no network routes
    taken = ip("-o", "-4", "addr")
    for step in range(256):
        subnet = f"198.18.{(os.getpid() + step) % 256}"
        if f"{subnet}." not in taken:
            return subnet
    msg = "all subnets of 198.18.0.0/16 are in use here"
    raise RuntimeError(msg)


def ip(*words: str) -> str:
    """Run ``ip``; returns what it prints.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"ip {' '.join(words)}: {done.stderr.strip()}"
        raise RuntimeError(msg)
    return done.stdout


def command(pid: int) -> str:
    """The command line of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def kill(pid: int) -> None:
    """SIGKILL to a process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def sweep() -> None:
    """Remove what tests left that were killed: names hold the number of their process."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        found = re.fullmatch(r"fbs([0-9a-f]+)[a-z]\d*", name)
        if found is None or Path(f"/proc/{int(found[1], 16)}").exists():
            continue
        # somebody else may sweep at the same time
        with contextlib.suppress(RuntimeError):
            for pid in ip("netns", "pids", name).split():
                kill(int(pid))
            ip("netns", "del", name)


def sweep_folders() -> None:
    """Remove the folders of tests that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("fs-*-*"):
        owner = folder.name.split("-")[1]
        if re.fullmatch("[0-9a-f]+", owner) and not Path(f"/proc/{int(owner, 16)}").exists():
            shutil.rmtree(folder, ignore_errors=True)
