"""Which variables of ours a job gets besides what its platform gives it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._launch.context import LaunchContext

# what there was when the program first used fiber; what it changed since is meant for its jobs
_at_first = dict(os.environ)
# the same for a process on another host, whose parent chose all of it
_began_with: dict[str, str] | None = None


# what is true of this host and user alone
_OURS = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "MAIL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "HOSTNAME",
        "HOST",
        "TERM",
        "DISPLAY",
        "TMPDIR",
        "TEMP",
        "TMP",
        "EDITOR",
        "PAGER",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "DYLD_LIBRARY_PATH",
        "DYLD_INSERT_LIBRARIES",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONEXECUTABLE",
        "PYTHONUSERBASE",
        "PYTEST_CURRENT_TEST",
    }
)
_OURS_BEGIN = ("XDG_", "SSH_", "DBUS_", "SYSTEMD_", "FIBER_")


def job_environment(runtime: LaunchContext) -> dict[str, str]:
    """Settings, the variables listed in ``env``, and what the program has changed.

    What tells of this host and its user does not go to another one, unless ``env`` names it.
    """
    listed = runtime.config.env
    here = runtime.info.capabilities.same_host
    first = _at_first if here else _at_start()
    changed = {
        key: value
        for key, value in os.environ.items()
        if key in listed or (first.get(key) != value and (here or not _is_ours(key)))
    }
    return {**changed, **runtime.config.to_environ(), "FIBER_BACKEND": runtime.info.name}


def begin() -> None:
    """What there is now came from the parent of this process: only changes from here on are its own."""
    global _began_with  # noqa: PLW0603 - a process begins once
    _began_with = dict(os.environ)


def _at_start() -> dict[str, str]:
    """What this process was started with, of which the system keeps a record."""
    if _began_with is not None:
        return _began_with
    try:
        record = Path("/proc/self/environ").read_bytes()
    except OSError:
        return _at_first
    pairs = (os.fsdecode(pair).partition("=") for pair in record.split(b"\0") if pair)
    found = {name: value for name, _, value in pairs}
    # where a program has written its title over it, it tells nothing
    return found if len(found.keys() & os.environ.keys()) * 2 > len(os.environ) else _at_first


def _is_ours(key: str) -> bool:
    return key in _OURS or key.startswith(_OURS_BEGIN)
