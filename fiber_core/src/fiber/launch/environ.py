"""Which variables of ours a job gets besides what its platform gives it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber.runtime import Runtime

# what there was when the program first used fiber; what it changed since is meant for its jobs
_at_first = dict(os.environ)


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


def job_environment(runtime: Runtime) -> dict[str, str]:
    """Settings, the variables listed in ``env``, and what the program has changed.

    What tells of this host and its user does not go to another one, unless ``env`` names it.
    """
    listed = runtime.config.env
    here = runtime.info.capabilities.same_host
    changed = {
        key: value
        for key, value in os.environ.items()
        if key in listed or (_at_first.get(key) != value and (here or not _is_ours(key)))
    }
    return {**changed, **runtime.config.to_environ(), "FIBER_BACKEND": runtime.info.name}


def _is_ours(key: str) -> bool:
    return key in _OURS or key.startswith(_OURS_BEGIN)
