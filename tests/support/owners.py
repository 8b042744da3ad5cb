"""Owners of folders: dead ones, some elsewhere, and programs in PID namespaces of their own."""

import contextlib
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import require
from commands import ran
from fiber.backend_parts.liveness import OWNER_FILE, Owner

#: a process of this PID namespace that has ended, and one of which nothing can be known here
DEAD = Owner.current()._replace(pid=4194304)
REMOTE = Owner("far/boot/1/1", 17, 1.0, "far")
#: has a program run in a PID namespace of its own
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
#: goes on until whoever started it lets it end, or kills it
_WAIT = "\nimport sys\nsys.stdin.read()\n"


def owned_by(folder: Path, owner: Owner) -> None:
    """Have a folder be somebody's, whose lock proves nothing."""
    (folder / OWNER_FILE).write_text(json.dumps({"owner": owner, "locked": False}))


def need() -> None:
    """Go on where this user can make PID namespaces."""
    require.need("pid-namespaces", _why_not())


@functools.cache
def _why_not() -> str | None:
    if shutil.which("unshare") is None:
        return "there is no program unshare"
    done = ran([*UNSHARE, "true"])
    return done.stderr.strip() if done.returncode else None


@contextlib.contextmanager
def running(
    source: str, *words: str, env: Mapping[str, str] | None = None, inside: bool = True
) -> Iterator[str]:
    """Run a program's source until the block ends; the value is the first line that it prints.

    Args:
        source: of the program, which goes on once it has come to its end.
        words: its arguments.
        env: its environment.
        inside: False to run it in this PID namespace.
    """
    argv = [*(UNSHARE if inside else ()), sys.executable, "-c", source + _WAIT, *words]
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            # SIGKILL, as whatever it owns is to be left
            process.kill()
            process.stdin.close()
            # unshare ends before the program that dies with it, and children that were forked after it
            process.stdout.read()
