"""Environment variables that a job gets from its parent, beside those of its platform."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._launch.context import LaunchContext

# environment when the program first used fiber; changes since then are meant for its jobs
_initial = dict(os.environ)
# environment that a process on another host got from its parent
_inherited: dict[str, str] | None = None


# variables that describe this host and user alone
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
# variables that are read when a program or its interpreter starts, or by Fiber itself then
_AT_START = frozenset({"PATH", "LANG", "LANGUAGE", "TZ"})
_AT_START_BEGIN = ("FIBER_", "PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "LC_")


def job_environment(runtime: LaunchContext) -> dict[str, str]:
    """Variables for a job: settings, those in ``env``, and those that the program has changed.

    Variables that describe this host and its user go to other hosts only if ``env`` lists them.
    """
    listed = runtime.config.env
    same_host = runtime.info.capabilities.same_host
    first = _initial if same_host else _at_start()
    changed = {
        key: value
        for key, value in os.environ.items()
        if key in listed or (first.get(key) != value and (same_host or not _is_ours(key)))
    }
    return {**changed, **runtime.config.to_environ(), "FIBER_BACKEND": runtime.info.name}


def public_and_private(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables that a job has to be started with, and those that its processes get privately.

    A platform shows the former to whoever may look at its jobs.
    """
    public = {
        key: value
        for key, value in environ.items()
        if key in _AT_START or key.startswith(_AT_START_BEGIN)
    }
    return public, {key: value for key, value in environ.items() if key not in public}


def mark_inherited() -> None:
    """Note that the present environment is the parent's; later changes are the program's."""
    global _inherited  # noqa: PLW0603 - a process begins once
    _inherited = dict(os.environ)


def _at_start() -> dict[str, str]:
    """Environment with which this process was started, as the system recorded it."""
    if _inherited is not None:
        return _inherited
    try:
        record = Path("/proc/self/environ").read_bytes()
    except OSError:
        return _initial
    pairs = (os.fsdecode(pair).partition("=") for pair in record.split(b"\0") if pair)
    found = {name: value for name, _, value in pairs}
    # useless where a program has written its title over it
    return found if len(found.keys() & os.environ.keys()) * 2 > len(os.environ) else _initial


def _is_ours(key: str) -> bool:
    return key in _OURS or key.startswith(_OURS_BEGIN)
