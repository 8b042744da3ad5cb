"""How far something is that takes minutes: one line that is rewritten, or a line every few seconds."""

# bootstrap.py shows with it how far the installation is, so it takes the standard library only
import shutil
import threading
import time
from collections.abc import Callable
from typing import Protocol

#: how long a terminal's line stands, and how far lines are apart elsewhere
_TERMINAL, _ELSEWHERE = 0.5, 5.0
_BAR = 30


class _Stream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


class Progress:
    """Tells from a thread of its own, so that nothing is silent while one step takes long.

    Args:
        stream: where to.
        state: the done share of all, from 0 to 1, and what is being done.
    """

    def __init__(self, stream: _Stream, state: Callable[[], tuple[float, str]]) -> None:
        self._stream = stream
        self._state = state
        self._rewrites = stream.isatty()
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say nothing more; the last line stays."""
        self._ended.set()
        self._thread.join()
        self._tell()
        if self._rewrites:
            self._stream.write("\n")

    def _run(self) -> None:
        while not self._ended.wait(_TERMINAL if self._rewrites else _ELSEWHERE):
            self._tell()

    def _tell(self) -> None:
        share, doing = self._state()
        line = told(share, time.monotonic() - self._began, doing)
        if self._rewrites:
            done = round(_BAR * share)
            line = f"[{'#' * done}{' ' * (_BAR - done)}] {line}"
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r{line[: columns - 1]}\033[K")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()


def told(share: float, seconds: float, doing: str) -> str:
    """One line: the percent, the time so far, the time that is left, and what is being done."""
    words = f"{share:4.0%}  {seconds:3.0f} s so far"
    # the first steps tell too little of the others
    if 0.02 <= share < 1:
        words += f", about {seconds / share * (1 - share):.0f} s left"
    return f"{words}  {doing}"
