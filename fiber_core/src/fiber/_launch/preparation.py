"""Preparation of a child: main module, paths and arguments as ``multiprocessing.spawn`` has them, and environment.

The keys of its data are those of the stdlib's ``spawn.prepare()``. Its ``get_preparation_data()`` is not
called, because that would choose a start method for the whole program.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import context, process, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._base.interpreter import working_folder
from fiber._wire import codec

if TYPE_CHECKING:
    from fiber._launch.context import LaunchContext

#: keys of the stdlib's data
_KNOWN = frozenset(
    {
        *("authkey", "dir", "init_main_from_name", "init_main_from_path", "log_level"),
        *("log_to_stderr", "name", "orig_dir", "start_method", "sys_argv", "sys_path"),
    }
)


class UnguardedMainError(RuntimeError):
    """A program starts processes whenever its main module is loaded, in its children too."""

    def __init__(self) -> None:
        # the stdlib's words, for which people search, and what to do
        super().__init__(
            "An attempt has been made to start a new process before the current process has finished "
            "its bootstrapping phase: a child loads the program's main module too, so put what starts "
            'processes there below `if __name__ == "__main__":`'
        )

    def __str__(self) -> str:
        text = super().__str__()
        place = ""
        trace = self.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__") == "__mp_main__":
                place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}: "
            trace = trace.tb_next
        return place + text


class Program:
    """Main module of this process, noted at construction."""

    def __init__(self) -> None:
        # noted now: once a script's last line has run, which is before its threads and pools end,
        # the interpreter does not know its path any more
        self._main = _where_main_is()

    def prepare(self, name: str) -> dict[str, Any]:
        """Data for ``spawn.prepare()`` in a child.

        Raises:
            UnguardedMainError: ``__main__`` is being loaded for this process and starts one meanwhile.
        """
        if getattr(process.current_process(), "_inheriting", False):
            raise UnguardedMainError
        data = {
            "name": name,
            "authkey": process.current_process().authkey,
            "orig_dir": _original_folder(),
            "sys_argv": sys.argv,
            "sys_path": [_original_folder() if entry == "" else entry for entry in sys.path],
            "log_to_stderr": vars(util)["_log_to_stderr"],
        }
        folder = working_folder()
        if folder is not None:
            data["dir"] = folder
        logger = vars(util)["_logger"]
        if logger is not None:
            data["log_level"] = logger.getEffectiveLevel()
        if codec.main_by_reference():
            data.update(self._main)
        return data


def added_by_libraries(name: str) -> dict[str, Any]:
    """What libraries add to the stdlib's data, in a function in place of its own.

    ``coverage`` measures children by an object that does its work when it is unpickled.
    """
    # a library that replaces it has imported it
    spawn: Any = sys.modules.get("multiprocessing.spawn")
    prepare = None if spawn is None else spawn.get_preparation_data
    if prepare is None or prepare.__module__ == spawn.__name__:
        return {}
    default: Any = vars(context)["_default_context"]
    chosen = default._actual_context  # noqa: SLF001 - the stdlib's function chooses one
    try:
        data = prepare(name)
    finally:
        default._actual_context = chosen  # noqa: SLF001 - as above
    return {key: value for key, value in data.items() if key not in _KNOWN}


def ignores_interrupts() -> bool:
    """True where this process ignores SIGINT; children do too, as after ``exec()``."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def _original_folder() -> str | None:
    folder: str | None = vars(process)["ORIGINAL_DIR"]
    return folder


def _where_main_is() -> dict[str, str]:
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    if path is None:
        return {}
    return {"init_main_from_path": os.path.normpath(os.path.join(_original_folder() or "", path))}  # noqa: PTH118 - as spawn does


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
