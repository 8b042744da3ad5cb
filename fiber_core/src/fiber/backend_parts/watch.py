"""Watches of jobs: threads that follow a platform's stream of changes, and open it again whenever it ends.

For platforms that send events. What a stream missed while it was broken is found by a list, which a
:class:`RunWatch` reads before it follows the stream: opened first, or from the version that was listed.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Callable

from fiber.exceptions import FiberError

__all__ = ["RunWatch", "Watches"]

log = logging.getLogger("fiber")


class RunWatch(abc.ABC):
    """Thread that follows the changes of one run's jobs until :meth:`close`.

    A platform that goes away says nothing about a job: it is logged once, and the stream is opened
    again. Only where the first attempt fails, :meth:`wait_ready` raises its error and the thread ends.

    Args:
        name: of the thread.
        platform: that sends the changes, for messages: "the cluster".
        end: seconds for the thread to end.
    """

    def __init__(self, name: str, platform: str, end: float) -> None:
        self._platform = platform
        self._end = end
        self._closed = threading.Event()
        self._ready = threading.Event()
        self._failure: FiberError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abc.abstractmethod
    def follow(self) -> None:
        """List the jobs, call :meth:`set_ready`, and publish changes until the stream ends.

        Raises:
            FiberError: the platform cannot be asked, or the stream broke.
        """

    @abc.abstractmethod
    def cut(self) -> None:
        """End the stream that is open, if there is one; on another thread than :meth:`follow`."""

    @abc.abstractmethod
    def pause(self, error: Exception | None) -> float:
        """Return the seconds before the next attempt, after an error or the end of a stream."""

    def may_pass(self, error: FiberError) -> bool:
        """Return whether the first attempt, which has failed, is made again."""
        return False

    @property
    def is_closed(self) -> bool:
        """True once the watch was closed: a stream that is opened then has to be ended at once."""
        return self._closed.is_set()

    @property
    def is_ready(self) -> bool:
        """True once the jobs were listed for the first time."""
        return self._ready.is_set()

    @property
    def has_failed(self) -> bool:
        """True where the first attempt failed and the thread has ended."""
        return self._failure is not None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def set_ready(self) -> None:
        """Note that the jobs were listed; from now on no change is missed."""
        self._ready.set()

    def wait_ready(self) -> None:
        """Wait until no change is missed any more.

        Raises:
            FiberError: the first attempt failed.
        """
        self._ready.wait()
        if self._failure is not None:
            # the exception is shared by all waiting threads: their tracebacks must not add up
            raise self._failure.with_traceback(None)

    def close(self) -> None:
        """End the stream and the thread. Idempotent."""
        self._closed.set()
        self.cut()
        if self._thread is not threading.current_thread():
            self._thread.join(self._end)

    def _run(self) -> None:
        is_logged = False
        while not self._closed.is_set():
            failure: Exception | None = None
            try:
                self.follow()
                is_logged = False
            except FiberError as error:
                failure = error
                if not (self.is_ready or self.may_pass(error)):
                    self._failure = error
                    break
                if self.is_ready and not (is_logged or self.is_closed):
                    log.warning(
                        "fiber: jobs are out of sight until %s is back: %s", self._platform, error
                    )
                    is_logged = True
            except Exception as error:
                if self.is_closed:
                    break
                failure = error
                # one change that cannot be read must not hide those after it
                log.exception("fiber: a change of a job on %s could not be read", self._platform)
                self.set_ready()
            # no event reports that a platform is back
            self._closed.wait(self.pause(failure))
        self.set_ready()


class Watches:
    """The watches of a backend, one a run, each started when it is first needed; thread-safe.

    Args:
        make: returns a new watch of a run.
    """

    def __init__(self, make: Callable[[str], RunWatch]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_run: dict[str, RunWatch] = {}
        self._closed = False

    def wait_ready(self, run_id: str) -> None:
        """Wait until no change of a run's jobs is missed; at once after :meth:`close`.

        Raises:
            FiberError: the platform cannot be asked. The next call makes another attempt.
        """
        with self._lock:
            if self._closed:
                return
            watch = self._by_run.get(run_id)
            if watch is None or watch.has_failed:
                watch = self._by_run[run_id] = self._make(run_id)
                watch.start()
        watch.wait_ready()

    def cut(self) -> None:
        """End all streams, as an outage does; they are opened again."""
        with self._lock:
            watches = list(self._by_run.values())
        for watch in watches:
            watch.cut()

    def close(self) -> None:
        """End all watches for good. Idempotent."""
        with self._lock:
            self._closed = True
            watches, self._by_run = list(self._by_run.values()), {}
        with contextlib.ExitStack() as stack:
            # each also where one before it fails
            for watch in watches:
                stack.callback(watch.close)
