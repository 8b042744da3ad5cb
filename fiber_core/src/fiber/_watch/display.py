"""Display of progress: bars on a terminal, a bar of tqdm's in a notebook, else lines.

Apart from ``progress``, so that a program which takes it by a callable does not import it.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fiber.watching import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fiber.model import Timing

Show = Callable[[Progress], object]


def choose(timing: Timing) -> tuple[Show, float]:
    """Return what shows progress here, and after how many seconds it is to be called again."""
    if "ipykernel" in sys.modules and importlib.util.find_spec("tqdm") is not None:
        return _Notebook().show, timing.progress
    if sys.stderr.isatty():
        return _Bar().show, timing.progress
    return _line, timing.progress_line


def _line(now: Progress) -> None:
    sys.stderr.write(f"fiber: {now.function}: {now}\n")
    sys.stderr.flush()


class _Notebook:
    """A bar of tqdm's."""

    def __init__(self) -> None:
        self._bar: Any = None

    def show(self, now: Progress) -> None:
        if self._bar is None:
            made: Any = importlib.import_module("tqdm.notebook")
            self._bar = made.tqdm(total=now.total, desc=now.function)
        bar = self._bar
        bar.total, bar.n = now.total, now.done
        failed = f"{now.failed} failed, " if now.failed else ""
        bar.set_postfix_str(f"{failed}{now.crew}", refresh=True)
        if now.is_over:
            bar.close()


class _Bar:
    """Bar on the terminal."""

    def __init__(self) -> None:
        self._task: Any = None

    def show(self, now: Progress) -> None:
        bars = _Bars.shown()
        if self._task is None:
            self._task = bars.begin(now.function)
        bars.update(self._task, now)


class _Bars:
    """The bars on the terminal: those of all calls, as long as one of them goes on."""

    _current: _Bars | None = None
    _lock = threading.RLock()

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.text import Text

        notes = self._notes = dict[Any, str]()

        class Shown(progress.Progress):
            def get_renderables(self) -> Iterable[RenderableType]:
                yield self.make_tasks_table(self.tasks)
                for note in list(notes.values()):
                    # a second line where it is long: it may say who has what workers wait for
                    yield Text(note, style="yellow")

        self._progress = Shown(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[said]}", markup=False),
            console=Console(stderr=True),
            auto_refresh=False,
            # the program's own streams are no affair of another thread
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._open = 0
        self._progress.start()

    @classmethod
    def shown(cls) -> _Bars:
        """The bars there are, or new ones."""
        with cls._lock:
            if cls._current is None:
                cls._current = _Bars()
            return cls._current

    def begin(self, function: str) -> Any:
        """Add a bar."""
        with self._lock:
            self._open += 1
            return self._progress.add_task(function, total=None, said="")

    def update(self, task: Any, now: Progress) -> None:
        """Show how far one is; all vanish from control when the last has ended."""
        with self._lock:
            crew = now.crew
            said = str(now).removesuffix(f", {crew}")
            self._notes.pop(task, None)
            if not now.is_over:
                if now.reason and now.workers < now.wanted:
                    self._notes[task] = f"  {crew}"
                else:
                    said = f"{said}, {crew}"
            total = now.done if now.is_over and now.total is None else now.total
            self._progress.update(task, total=total, completed=now.done, said=said)
            self._progress.refresh()
            if now.is_over:
                self._open -= 1
                if not self._open:
                    self._progress.stop()
                    _Bars._current = None
