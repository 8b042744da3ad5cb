"""Feeds of runs for open pages, the addresses of the page, and the HTTP server that answers them.

A :class:`Feed` asks a run for its status once a second while somebody waits for its next answer, keeps the last
minutes, and forgets after a while without; those who look are handed the newest answer when they are ready for it, so
that one who is slow misses some.

==================  =====================================================================
``/``               the page
``/page/NAME``      its files
``/runs``           the runs that can be looked at
``/events?run=``    what is told of one, as server-sent events; only its end with ``&quiet=1``
``/log?run=&job=``  the last lines of a job's log
==================  =====================================================================

:class:`Guard` checks every request. It needs the token: in its address the first time, in a cookie from then on;
scripts send it as ``Authorization: Bearer``. What has none is answered 403, and nothing of what there is. The Host
header has to name this server, since a page of another site may have its name lead here (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import importlib.resources
import importlib.util
import ipaddress
import itertools
import json
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fiber._base import values
from fiber._config.convert import host_and_port
from fiber._config.settings import DASHBOARD
from fiber.exceptions import FiberError
from fiber.model import Timing

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


#: nothing but what this server sends itself, and nothing inside of another page
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_SENT = tuple((name.encode(), value.encode()) for name, value in _HEADERS.items())


class Guard:
    """ASGI application in front of another one.

    Args:
        app: answers the requests that have the token.
        token: the secret.
        host: that is listened at.
    """

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self._app = app
        self._token = token.encode()
        self._is_loopback = is_loopback(host)
        self._names = {"localhost"}
        if not self._is_loopback:
            self._names |= {host.lower(), os.uname().nodename.lower()}
        # cookies do not tell ports apart, and there may be another dashboard
        self._cookie = f"fiber-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        from starlette.requests import Request
        from starlette.responses import Response

        request = Request(scope)
        given = request.query_params.get("token", "")
        scheme, _, sent_token = request.headers.get("authorization", "").partition(" ")
        token = (
            given
            or (sent_token if scheme.lower() == "bearer" else "")
            or request.cookies.get(self._cookie, "")
        )
        if not self._names_us(request.headers.getlist("host")) or not self._is_token(token):
            await Response(status_code=403, headers=_HEADERS)(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SENT]
                if given:
                    cookie = f"{self._cookie}={given}; HttpOnly; Path=/; SameSite=Strict"
                    message["headers"].append((b"set-cookie", cookie.encode()))
            await send(message)

        await self._app(scope, receive, sent)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)

    def _names_us(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        name, _, port = hosts[0].lower().rpartition(":")
        if not port.isdigit() or not name:
            name = hosts[0].lower()
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        # no name that leads elsewhere later
        return address.is_loopback or not self._is_loopback


def is_loopback(host: str) -> bool:
    """True for an address that other hosts cannot reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


#: files of the page
_TYPES = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_INDEX = "index.html"
#: most browsers at a time, and lines of a log that are shown
_MOST_WATCHERS, _MOST_LINES = 32, 1000


class Pages:
    """Application that answers requests which have the token.

    Args:
        runs: returns the runs that can be looked at.
        timing: durations.
    """

    def __init__(self, runs: Callable[[], Sequence[Run]], timing: Timing) -> None:
        self._runs = runs
        self._timing = timing
        self._feeds: dict[str, Feed] = {}
        self._watchers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        folder = importlib.resources.files("fiber._dashboard") / "page"
        self._files = {name: (folder / name).read_bytes() for name in (_INDEX, *_TYPES)}

    def application(self) -> Any:
        """Return them as an ASGI application."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/", self.index),
                Route("/page/{name}", self.file),
                Route("/runs", self.runs),
                Route("/events", self.events),
                Route("/log", self.log),
            ]
        )

    async def index(self, request: Request) -> Response:
        """The page."""
        from starlette.responses import Response

        return Response(self._files[_INDEX], media_type="text/html; charset=utf-8")

    async def file(self, request: Request) -> Response:
        """Answer with one of the page's files."""
        from starlette.responses import Response

        kind = _TYPES.get(request.path_params["name"])
        if kind is None:
            return Response(status_code=404)
        return Response(self._files[request.path_params["name"]], media_type=kind)

    async def runs(self, request: Request) -> Response:
        """The runs that can be looked at, newest first."""
        from starlette.responses import JSONResponse

        found = await asyncio.to_thread(self._runs)
        return JSONResponse(
            [
                {
                    "id": one.id,
                    "program": one.program,
                    "backend": one.backend,
                    "created": one.created,
                }
                for one in reversed(found)
            ]
        )

    async def events(self, request: Request) -> Response:
        """Answer with the events of a run, until the browser closes the connection."""
        from starlette.responses import Response, StreamingResponse

        run = await self._find(request)
        if run is None:
            return Response(status_code=404)
        if self._watchers >= _MOST_WATCHERS:
            return Response(status_code=503)
        feed = self._feeds.get(run.id)
        if feed is None:
            feed = self._feeds[run.id] = Feed(run, self._timing)
        self._loop = asyncio.get_running_loop()
        events = feed.ending() if request.query_params.get("quiet") else feed.events()
        return StreamingResponse(self._watched(events), media_type="text/event-stream")

    def end(self, how: str) -> bool:
        """Tell all who look that the run has ended; may be called on any thread. False where nobody looks.

        Args:
            how: what it ended with, for people.
        """
        if self._loop is None or not self._watchers:
            return False
        self._loop.call_soon_threadsafe(self.end_streams, how)
        return True

    def end_streams(self, how: str | None = None) -> None:
        """Have all streams end; on the thread of the event loop.

        Args:
            how: as that of :meth:`Feed.end`.
        """
        for feed in self._feeds.values():
            feed.end(how)

    async def _watched(self, events: AsyncGenerator[bytes, None]) -> Any:
        self._watchers += 1
        try:
            async for event in events:
                yield event
        finally:
            self._watchers -= 1
            await events.aclose()

    async def log(self, request: Request) -> Response:
        """The last lines of the log of a run's job."""
        from starlette.responses import JSONResponse, Response

        run = await self._find(request)
        if run is None:
            return Response(status_code=404)
        job = request.query_params.get("job", "")[:200]
        try:
            answer = await asyncio.to_thread(_ask_once, run, job)
        except FiberError as error:
            answer = {"error": str(error)}
        return JSONResponse(answer)

    async def _find(self, request: Request) -> Run | None:
        ident = request.query_params.get("run", "")
        found = await asyncio.to_thread(self._runs)
        return next((one for one in found if one.id == ident), None)


def _ask_once(run: Run, job: str) -> dict[str, Any]:
    connection = run.connect()
    try:
        return connection.ask("log", job=job, lines=_MOST_LINES)
    finally:
        connection.close()


class Server:
    """HTTP server of the page.

    Args:
        runs: returns the runs that can be looked at, oldest first.
        address: ``HOST:PORT``; port 0 for any that is free.
        timing: durations.
        token: the secret; a new one if omitted.

    Raises:
        ConfigError: it is no such address.
        FiberError: it cannot be listened at, or what serves pages is not installed.
    """

    def __init__(
        self,
        runs: Callable[[], Sequence[Run]],
        address: str,
        timing: Timing,
        *,
        token: str | None = None,
    ) -> None:
        require()
        use = f"the dashboard is served at HOST:PORT, such as {DASHBOARD}"
        host, port = host_and_port(address, use)
        token = token or secrets.token_urlsafe(24)
        self._socket = _listen(host, port, spare=address == DASHBOARD)
        self._pages = Pages(runs, timing)
        self._server = _server(Guard(self._pages.application(), token, host), self._pages)
        name = f"[{host}]" if ":" in host else host
        #: where the page is, with the token
        self.url = f"http://{name}:{self._socket.getsockname()[1]}/?token={token}"

    def run(self) -> None:
        """Serve until :meth:`end` or a signal."""
        self._server.run(sockets=[self._socket])

    def end(self, how: str | None = None) -> bool:
        """Have :meth:`run` return; may be called on any thread.

        Args:
            how: what the run ended with, which those who look are told first; None where it has not ended.

        Returns:
            True where somebody is told.
        """
        is_told = how is not None and self._pages.end(how)
        self._server.force_exit = not is_told
        self._server.should_exit = True
        return is_told


def require() -> None:
    """Check that what serves pages is installed.

    Raises:
        FiberError: it is not.
    """
    missing = [name for name in ("starlette", "uvicorn") if not importlib.util.find_spec(name)]
    if missing:
        msg = f"the dashboard needs {' and '.join(missing)}: pip install 'fiber-core[dashboard]'"
        raise FiberError(msg)


def _listen(host: str, port: int, *, spare: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((host, port))
        except OSError:
            if not spare:
                raise
            listener.bind((host, 0))
        listener.listen(128)
    except OSError as error:
        listener.close()
        msg = f"the dashboard cannot be served at {host}:{port}: {error.strerror or error}"
        raise FiberError(msg) from error
    return listener


def _server(app: Any, pages: Pages) -> uvicorn.Server:
    import uvicorn

    class EndsStreams(uvicorn.Server):
        async def shutdown(self, *args: Any, **more: Any) -> None:
            # it would wait for them, and complain
            pages.end_streams()
            await super().shutdown(*args, **more)

    options: Mapping[str, Any] = {
        # the address of a request has the token
        "access_log": False,
        "log_level": "warning",
        "lifespan": "off",
        "ws": "none",
        "server_header": False,
        "proxy_headers": False,
        "limit_concurrency": 200,
        # browsers keep streams open, which nobody waits for
        "timeout_graceful_shutdown": 1,
    }
    return EndsStreams(uvicorn.Config(app, **options))
