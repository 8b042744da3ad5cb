"""Progress of one call: a sink that counts outcomes on their way, and the thread that shows them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from fiber.watching import Progress

if TYPE_CHECKING:
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
        from fiber._watch import display

        return display.choose(timing)

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
