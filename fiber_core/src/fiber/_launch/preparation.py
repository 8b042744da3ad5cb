"""What a child is told about its program, in the words of the stdlib's ``spawn.prepare()``.

The stdlib's own function for it would choose a start method for the whole program on the way.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import process, spawn, util
from pathlib import Path
from typing import Any

from fiber._wire import codec

__all__ = ["Program", "ignores_interrupts"]


class Program:
    """The program that this process runs."""

    def __init__(self) -> None:
        # noted now: once a script's last line has run, which is before its threads and pools end,
        # the interpreter knows its path no more
        self._main = _where_main_is()

    def prepare(self, name: str) -> dict[str, Any]:
        """What a child of that name is told.

        Raises:
            RuntimeError: ``__main__`` is being loaded for this process and starts one meanwhile.
        """
        vars(spawn)["_check_not_importing_main"]()
        told = {
            "name": name,
            "authkey": process.current_process().authkey,
            "dir": str(Path.cwd()),
            "orig_dir": _original_folder(),
            "sys_argv": sys.argv,
            "sys_path": [_original_folder() if entry == "" else entry for entry in sys.path],
            "log_to_stderr": vars(util)["_log_to_stderr"],
        }
        logger = vars(util)["_logger"]
        if logger is not None:
            told["log_level"] = logger.getEffectiveLevel()
        if codec.main_by_reference():
            told.update(self._main)
        return told


def ignores_interrupts() -> bool:
    """True where SIGINT is ignored in this process, and so in children; as exec() hands it on."""
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
