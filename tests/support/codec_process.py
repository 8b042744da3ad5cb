"""Process that loads pickled functions of the codec and calls them, as a worker does."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fiber._wire import codec, frames

_LENGTH = struct.Struct("<Q")
#: its __main__ is an empty module, as in processes that fiber starts
_SCRIPT = """
import struct, sys, types
from fiber._wire import codec, frames
module = types.ModuleType("__mp_main__")
sys.modules["__main__"] = sys.modules["__mp_main__"] = module
codec.set_main_by_reference(False)
length, given, taken = struct.Struct("<Q"), sys.stdin.buffer, sys.stdout.buffer
sys.stdout = sys.stderr
while head := given.read(8):
    body = bytearray(given.read(length.unpack(head)[0]))
    try:
        function, arguments = codec.loads(memoryview(body))
        answer = True, function(*arguments)
        whole = frames.joined(codec.dumps(answer))
    except Exception as error:
        whole = frames.joined(codec.dumps((False, codec.with_traceback(error))))
    taken.write(length.pack(len(whole)) + whole)
    taken.flush()
"""


class CodecProcess:
    """Process that calls the functions sent to it, one after another."""

    def __init__(self, *, paths: Iterable[Path] = ()) -> None:
        known = [str(path) for path in paths] + [os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, known))},
        )

    def __enter__(self) -> CodecProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=20)

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function in the process; returns its result or raises its exception."""
        return self.call_pickled(frames.joined(codec.dumps((function, arguments))))

    def call_pickled(self, whole: bytes) -> Any:
        """As :meth:`call`, of a pickled function with its arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_LENGTH.pack(len(whole)) + whole)
        self._process.stdin.flush()
        (size,) = _LENGTH.unpack(self._process.stdout.read(8))
        is_result, answer = codec.loads(memoryview(bytearray(self._process.stdout.read(size))))
        if not is_result:
            raise answer
        return answer


def roundtrip(value: Any) -> Any:
    """Pickle and unpickle an object in this process."""
    return codec.loads(memoryview(bytearray(frames.joined(codec.dumps(value)))))


class Prompt:
    """A ``__main__`` into which a user types."""

    def __init__(self) -> None:
        self.globals: dict[str, Any] = {"__name__": "__main__"}

    def type(self, source: str) -> None:
        """Execute source."""
        code = compile(textwrap.dedent(source), "<prompt>", "exec", dont_inherit=True)
        exec(code, self.globals)

    def __getitem__(self, name: str) -> Any:
        return self.globals[name]
