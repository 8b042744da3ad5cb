"""Progress of one call: a sink that counts outcomes on their way, the thread that shows them, and how.

A callable of the program's shows them, or bars on a terminal, a bar of tqdm's in a notebook, else lines.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from fiber.watching import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fiber._tasks.call import Call, Sink
    from fiber._workers.group import WorkerGroup
    from fiber.model import Timing


log = logging.getLogger("fiber")


class Watch:
    """Sink in front of a call's own, which counts outcomes until the call is over.

    Args:
        wanted: True to show progress where the program's messages go; or a callable, which is given
            a :class:`~fiber.watching.Progress` now and then and once at the end.
        sink: the call's own.

    Raises:
        TypeError: ``wanted`` is neither.
    """

    def __init__(self, wanted: Any, sink: Sink) -> None:
        if wanted is not True and not callable(wanted):
            msg = f"progress must be True, False or a callable, not {wanted!r}"
            raise TypeError(msg)
        self._wanted = wanted
        self._sink = sink
        self._began = time.monotonic()
        self._done = self._failed = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._group: WorkerGroup | None = None
        self._call: Call | None = None
        self._total: int | None = None
        self._function = ""

    def begin(self, group: WorkerGroup, call: Call | None, total: int | None = None) -> None:
        """Show the progress of a call from now on.

        Args:
            group: that runs it.
            call: the call; None where it has failed already.
            total: items in all; None for as many as the call has once it is closed.
        """
        if call is None:
            return
        self._function, self._group, self._call = call.name, group, call
        self._total = total
        thread = threading.Thread(target=self._run, name="fiber-progress", daemon=True)
        # a program that ends meanwhile leaves no half of a line
        closer = util.Finalize(None, self._give_up, args=(group.timing,), exitpriority=14)
        self._thread, self._closer = thread, closer
        thread.start()

    def finish(self) -> None:
        """Wait a bounded time for the end to be shown, where the call is over."""
        thread, group = self._thread, self._group
        if thread is None or group is None or threading.current_thread() is thread:
            return
        if self._over.is_set():
            thread.join(group.timing.callback)

    def _give_up(self, timing: Timing) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(timing.callback)

    # -- sink

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Count outcomes and pass them on."""
        self._done += len(values)
        self._failed += len(errors)
        self._sink.accept(start, values, errors)

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Count failures and pass them on."""
        self._done += stop - start
        self._failed += stop - start
        self._sink.fail(start, stop, error)

    def done(self) -> None:
        """Pass the end on."""
        self._over.set()
        self._sink.done()

    def broken(self, error: BaseException) -> None:
        """Pass the end on."""
        self._over.set()
        self._sink.broken(error)

    # -- the thread

    def _run(self) -> None:
        group = self._group
        assert group is not None, "it began"
        try:
            timing = group.timing
            show, interval = self._display(timing)
            last = None
            while not self._over.wait(interval):
                now = self._snapshot(is_over=False)
                # what takes long and says nothing new is told at the end
                if (now.done, now.crew) != last or self._wanted is True:
                    last = now.done, now.crew
                    show(now)
            show(self._snapshot(is_over=True))
        except Exception:
            log.warning(
                "fiber: the progress of %s is not shown any more; its tasks go on",
                self._function,
                exc_info=True,
            )
        finally:
            self._closer.cancel()
            # results may be kept long, and with them this
            self._group = self._call = None

    def _display(self, timing: Timing) -> tuple[Callable[[Progress], object], float]:
        if self._wanted is not True:
            return self._wanted, timing.progress
        return choose(timing)

    def _snapshot(self, *, is_over: bool) -> Progress:
        group, call, total = self._group, self._call, self._total
        assert group is not None, "it began"
        assert call is not None, "it began"
        outlook = group.manager.outlook()
        if total is None and not call.grows:
            total = call.count
        return Progress(
            function=self._function,
            total=total,
            done=self._done,
            failed=self._failed,
            elapsed=time.monotonic() - self._began,
            workers=outlook.ready,
            wanted=outlook.desired,
            waiting=outlook.waiting,
            reason=outlook.reason,
            is_over=is_over,
        )


def length_of(iterable: Any) -> int | None:
    """Number of all items; None where it is not known before they are drawn."""
    try:
        return len(iterable)
    except TypeError:
        return None


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
