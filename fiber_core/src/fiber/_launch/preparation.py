"""Preparation data of a child (main module, paths, arguments), as ``multiprocessing.spawn`` has it.

The keys are those of the stdlib's ``spawn.prepare()``. Its ``get_preparation_data()`` is not
called, because that would choose a start method for the whole program.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import context, process, util
from typing import Any

from fiber._base.interpreter import working_folder
from fiber._wire import codec

__all__ = [
    "Program",
    "UnguardedMainError",
    "added_by_libraries",
    "ignores_interrupts",
]

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
