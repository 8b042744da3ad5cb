"""Feed of a run for open pages: its status, asked for once a second, and the last minutes of it.

A :class:`Feed` asks while somebody waits for its next answer, and forgets after a while without; those who
look are handed the newest answer when they are ready for it, so that one who is slow misses some.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, Protocol

from fiber._base import values
from fiber.exceptions import FiberError
from fiber.model import Timing

#: most points of a plot, tasks of a timeline, and failed tasks that are remembered
_MOST_POINTS, _MOST_SPANS, _MOST_ERRORS = 600, 40_000, 200
#: spans in one event, so that a page is not kept from drawing for long
_AT_ONCE = 5000
#: fields of a worker, in the order in which they are told
WORKER = (
    "name",
    "host",
    "pid",
    "state",
    "reason",
    "running",
    "function",
    "seconds",
    "usual",
    "is_slow",
    "job",
    "memory",
    "done",
    "lately",
    "others",
)
#: a proxy, or a browser that is gone, is noticed by this
_STILL_HERE = b": still here\n\n"
_TOTALS = ("waiting", "running", "done", "failed", "retried", "ready", "wanted")


class Connection(Protocol):
    """Connection to the program of a run; see ``fiber._watch.status.Asker``."""

    def ask(self, what: str, **facts: object) -> dict[str, Any]:
        """Return an answer.

        Raises:
            FiberError: there is none.
        """

    def close(self) -> None:
        """End it."""


@values.frozen(kw_only=True)
class Run:
    """A run that can be looked at."""

    #: its id
    id: str
    #: words of its command line
    program: tuple[str, ...] = ()
    #: name of its backend
    backend: str = ""
    #: when it began, in seconds since the epoch; None where that is not known
    created: float | None = None
    #: makes a connection to its program; raises FiberError where that does not answer
    connect: Callable[[], Connection]


class Feed:
    """Feed of one run; used in one event loop.

    Args:
        run: the run.
        timing: durations.
    """

    def __init__(self, run: Run, timing: Timing) -> None:
        self._run = run
        self._timing = timing
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        #: set, and another one made, when something is told
        self._told = asyncio.Event()
        self._number = 0
        self._state = b""
        self._is_over = False
        self._points: deque[dict[str, Any]] = deque(maxlen=_MOST_POINTS)
        self._spans: deque[tuple[int, list[Any]]] = deque(maxlen=_MOST_SPANS)
        self._span_numbers = itertools.count()
        self._errors: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._errors_changed = 0
        #: by pool: when it was told, and how many tasks were done
        self._done: dict[str, tuple[float, int]] = {}

    def end(self, how: str | None) -> None:
        """Have all streams end; idempotent.

        Args:
            how: what the run ended with, which is told as the last thing; "" where there is nothing to say, and
                None where it has not ended.
        """
        if self._is_over:
            return
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._tell(b"" if how is None else _event("ended", {"how": how}))

    async def ending(self) -> AsyncGenerator[bytes, None]:
        """Yield what a browser is told that shows nothing now: the end of the run."""
        while not await self._wait(lambda: self._is_over):
            yield _STILL_HERE
        if self._state:
            yield self._state

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield what a browser is told, as server-sent events, until the run is over or nobody listens."""
        self._watchers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask_on())
        try:
            yield _event("history", list(self._points))
            seen, next_span, errors = 0, 0, 0
            while not self._is_over or self._has_told_since(seen):
                if not await self._wait(functools.partial(self._has_told_since, seen)):
                    yield _STILL_HERE
                    continue
                seen = self._number
                if errors != self._errors_changed:
                    errors = self._errors_changed
                    yield _event("errors", list(self._errors.values()))
                # what a page can draw at once comes first
                if self._state:
                    yield self._state
                if spans := self._spans_since(next_span):
                    next_span = self._spans[-1][0] + 1
                    for first in range(0, len(spans), _AT_ONCE):
                        yield _event("spans", spans[first : first + _AT_ONCE])
        finally:
            self._watchers -= 1

    def _spans_since(self, first: int) -> list[list[Any]]:
        newest = itertools.takewhile(lambda one: one[0] >= first, reversed(self._spans))
        return [span for _, span in newest][::-1]

    def _has_told_since(self, seen: int) -> bool:
        return self._number > seen

    async def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait a bounded time until something was told by which a condition is true; whether it is."""
        # a condition's lock would be lost by a wait that is cancelled twice, as those of browsers are that go
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timing.idle_thread
        while not condition():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._told.wait(), deadline - loop.time())
            if loop.time() >= deadline:
                return condition()
        return True

    async def _ask_on(self) -> None:
        """Ask again and again, until nobody has looked for a while."""
        connection: Connection | None = None
        last_watched = time.monotonic()
        try:
            while self._watchers or time.monotonic() - last_watched < self._timing.idle_thread:
                if self._watchers:
                    last_watched = time.monotonic()
                began = time.monotonic()
                try:
                    is_new = connection is None
                    if connection is None:
                        connection = await asyncio.to_thread(self._run.connect)
                    asked = connection
                    status = await asyncio.to_thread(asked.ask, "status")
                    timeline = await asyncio.to_thread(asked.ask, "timeline")
                    self._tell(self._digest(status, timeline))
                except FiberError as error:
                    if connection is not None:
                        connection.close()
                        connection = None
                    self._tell(_event("silent", {"reason": str(error)}))
                took = time.monotonic() - began
                # an answer that is dear is asked for less often: a tenth of the program at most; the first one
                # waits for what answers to start
                await asyncio.sleep(max(self._timing.look - took, 0.0 if is_new else 9 * took))
        finally:
            if connection is not None:
                connection.close()

    def _tell(self, event: bytes) -> None:
        self._number += 1
        self._state = event
        told, self._told = self._told, asyncio.Event()
        told.set()

    def _digest(self, status: Mapping[str, Any], timeline: Mapping[str, Any]) -> bytes:
        """Take an answer in; returns what browsers are told."""
        now = float(timeline["now"])
        for span in timeline["spans"]:
            self._spans.append((next(self._span_numbers), span))
        self._take_errors(status["pools"])
        pools = [
            {
                **{name: pool[name] for name in ("name", "reason", *_TOTALS)},
                "rate": self._rate(pool, now),
            }
            for pool in status["pools"]
        ]
        workers = [
            [number, *(worker.get(name) for name in WORKER)]
            for number, pool in enumerate(status["pools"])
            for worker in pool["workers"]
        ]
        memory = [one["memory"] for pool in status["pools"] for one in pool["workers"]]
        known = [one for one in memory if one is not None]
        point = {
            "t": round(now, 3),
            "rate": _sum(pool["rate"] for pool in pools),
            **{name: sum(pool[name] for pool in pools) for name in _TOTALS},
            "memory": sum(known) if known else None,
            "most": max(known, default=None),
            "own": status.get("memory"),
        }
        self._points.append(point)
        return _event(
            "state",
            {
                "now": now,
                "run": {
                    "id": status["run"],
                    "backend": status["backend"],
                    "pid": status["pid"],
                    "program": status["program"],
                    "host": status.get("host", ""),
                    "created": self._run.created,
                },
                "point": point,
                "pools": pools,
                "workers": workers,
                "processes": status["processes"],
                "queues": status["queues"],
                "missing": timeline["missing"],
            },
        )

    def _rate(self, pool: Mapping[str, Any], now: float) -> float | None:
        before = self._done.get(pool["name"])
        self._done[pool["name"]] = now, pool["done"]
        if before is None or now <= before[0]:
            return None
        rate: float = (pool["done"] - before[1]) / (now - before[0])
        return round(max(0.0, rate), 2)

    def _take_errors(self, pools: Iterable[Mapping[str, Any]]) -> None:
        for pool in pools:
            for error in pool["errors"]:
                key = pool["name"], error["function"], error["item"], error["when"]
                if key not in self._errors:
                    self._errors[key] = {**error, "pool": pool["name"]}
                    self._errors_changed += 1
        while len(self._errors) > _MOST_ERRORS:
            del self._errors[next(iter(self._errors))]


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 2) if known else None


def _event(kind: str, data: object) -> bytes:
    text = json.dumps(data, separators=(",", ":"), default=str)
    return f"event: {kind}\ndata: {text}\n\n".encode()
