"""Addresses of the page, and the HTTP server that answers them.

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
import hmac
import importlib.resources
import importlib.util
import ipaddress
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fiber._config.convert import host_and_port
from fiber._config.settings import DASHBOARD
from fiber._dashboard.feed import Feed, Run
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fiber.model import Timing

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
