"""Forked processes that are killed before a line of theirs, for state that they share."""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def killed_at(
    line: int,
    action: Callable[[Callable[[], None]], object],
    *modules: ModuleType,
    event: str = "line",
) -> bool:
    """Run an action in a forked process that is killed before its n-th line; False where it has fewer.

    Args:
        line: the number, from 1.
        action: what it does; it calls the function that it is given when lines are to be counted.
        modules: whose lines are counted.
        event: "opcode" to count instructions rather than lines.
    """
    # in the child, finalizers of others' objects would end it in their own way
    gc.disable()
    pid = os.fork()
    if not pid:
        lines, files = 0, {module.__file__ for module in modules}

        def trace(frame: FrameType, happened: str, argument: Any) -> Any:
            nonlocal lines
            if frame.f_code.co_filename not in files:
                return None
            frame.f_trace_opcodes = event == "opcode"
            lines += happened == event
            if lines == line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        # Python 3.12 looks only here whether anybody wants them
        sys._getframe().f_trace_opcodes = event == "opcode"
        with contextlib.suppress(BaseException):
            action(lambda: sys.settrace(trace))
        os._exit(0)
    gc.enable()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 0
