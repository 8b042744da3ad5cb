"""Interrupts of a thread at a chosen place, as the handlers of signals bring them."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from fiber._wire.reading import Reading

CHECKS = "CALL", "RESUME", "JUMP_BACKWARD"


def interrupted_while_reading(
    number: int, action: Callable[[], Any], within: Any = Reading.wait
) -> tuple[Any, bool]:
    """Run an action that is interrupted at the n-th place within a function where it could be.

    Returns:
        Its result, and whether it was interrupted: CPython looks for signals behind calls, where a
        function begins, and where a loop does.
    """
    places, depth = 0, 0
    last: dict[FrameType, str] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal places, depth
        is_outermost = frame.f_code is within.__code__
        depth += is_outermost * {"call": 1, "return": -1}.get(event, 0)
        if not depth:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            places += last.get(frame, "").startswith(CHECKS)
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if places == number:
                places += 1
                raise KeyboardInterrupt
        return trace

    # finalizers of others' objects would swallow it
    gc.disable()
    # Python 3.12 looks only here whether anybody wants them
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        return action(), False
    except KeyboardInterrupt:
        return None, True
    finally:
        sys.settrace(None)
        gc.enable()
