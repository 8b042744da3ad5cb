"""The side that opens streams: one into each job that runs, for as long as it does.

Streams are opened beside the reactor, for platforms take their time. The first one is measured.
"""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections.abc import Callable

from fiber._base.threads import Reactor, ThreadPool
from fiber._tunnel import routes
from fiber._tunnel.routes import Ports, Route, connect
from fiber._tunnel.tunnel import Tunnel, TunnelStream, dialer_handshake
from fiber._wire import fork
from fiber._wire.handshake import Credentials, Hello
from fiber.exceptions import WireError
from fiber.model.timing import Timing

log = logging.getLogger("fiber")

#: streams that are being opened at once
_AT_ONCE = 16
#: bytes by which the first stream is measured
_PROBE = 2**18


class _Job:
    """A job as this side sees it.

    Args:
        ident: of the job.
        name: for people.
        open_stream: opens a stream into it; waits, raises what the platform has to say.
    """

    def __init__(self, ident: str, name: str, open_stream: Callable[[], socket.socket]) -> None:
        self.ident = ident
        self.name = name
        self.open_stream = open_stream
        #: True from its start to its end
        self.live = False
        #: True while a stream into it is opened, or another attempt is due
        self.opening = False
        self.tunnel: Tunnel
        #: the stream whose other side has not proved itself yet
        self.unproven: TunnelStream | None = None
        #: when the last stream was proved
        self.proven = 0.0
        #: attempts that failed since the last stream, and when the first of them did
        self.failures = 0
        self.failing_since = 0.0


class TunnelClient:
    """All tunnels of a run. Public methods may be called from any thread.

    Args:
        credentials: of the run.
        hello: of this process.
        patience: seconds that a connection may be without a stream.
        on_speed: called once with what was measured of the first stream: seconds there and back, and
            bytes in a second.
        timing: durations of the run.
    """

    def __init__(
        self,
        credentials: Credentials,
        hello: Hello,
        *,
        patience: float,
        on_speed: Callable[[tuple[float, float]], None],
        timing: Timing = Timing(),
    ) -> None:
        self._credentials = credentials
        self._hello = hello
        self._timing = timing
        self._patience = max(patience, timing.stream_answer)
        self._on_speed = on_speed
        self._is_measured = False
        self._is_reported = False
        self._closed = False
        # where this process may be dialled
        self._served: set[Route] = set()
        self._jobs: dict[str, _Job] = {}
        # jobs that have ended, whose connections have not
        self._ended: set[_Job] = set()
        self._openers = ThreadPool("fiber-streams", _AT_ONCE)
        self._reactor = Reactor("fiber-tunnel")
        self._ports = Ports(self._dialled)
        self._ports.serve(self._reactor)
        fork.register(self._reactor)
        fork.register(self)
        self._reactor.call_soon(self._tick)

    def resolve(self, url: str) -> str:
        """Address to dial on this host in place of a URL.

        Raises:
            TransportError: this process is ending.
        """
        route = routes.parse(url)
        if route is None:
            return url
        return route.direct if route.ident == self._hello.ident else self._ports.resolve(route)

    def register(self, url: str) -> None:
        """Let jobs connect to a route to this process; no other one is open to them."""
        route = routes.parse(url)
        if route is not None:
            self._served.add(route)

    def withdraw(self, url: str) -> None:
        """Let jobs connect there no more."""
        route = routes.parse(url)
        if route is not None:
            self._served.discard(route)

    def add(self, ident: str, name: str, open_stream: Callable[[], socket.socket]) -> None:
        """Note a job; :meth:`begin` tells when it runs."""

        def act() -> None:
            if ident in self._jobs or self._closed:
                return
            job = self._jobs[ident] = _Job(ident, name, open_stream)
            job.tunnel = Tunnel(
                self._reactor,
                is_client=True,
                accept=self._accept,
                on_broken=functools.partial(self._broken, job),
                on_idle=functools.partial(self._check, job),
                patience=self._patience,
                timing=self._timing,
            )

        self._reactor.call_soon(act)

    def begin(self, ident: str) -> None:
        """Keep a stream in a job, which runs."""

        def act() -> None:
            job = self._jobs.get(ident)
            if job is not None and not job.live:
                job.live = True
                self._open(job)

        self._reactor.call_soon(act)

    def remove(self, ident: str) -> None:
        """Open no more streams into a job, which has ended; its connections end when their ends do."""

        def act() -> None:
            job = self._jobs.pop(ident, None)
            if job is not None:
                job.live = False
                self._ended.add(job)
                self._ports.forget(ident)
                self._check(job)

        self._reactor.call_soon(act)

    def close(self) -> None:
        """End all tunnels. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._openers.clear()
        self._reactor.call_and_wait(self._end)
        self._reactor.stop()

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptors."""
        self._closed = True
        self._ports.abandon()
        for job in (*self._jobs.values(), *self._ended):
            job.tunnel.abandon()
            if job.unproven is not None:
                job.unproven.abandon()

    # -- on the reactor's thread from here on

    def _end(self) -> None:
        self._ports.close()
        for job in (*self._jobs.values(), *self._ended):
            job.live = False
            job.tunnel.close()
            if job.unproven is not None:
                job.unproven.close()

    def _tick(self) -> None:
        self._reactor.call_later(self._timing.heartbeat, self._tick)
        now = time.monotonic()
        for job in (*self._jobs.values(), *self._ended):
            stream = job.unproven
            if stream is not None and now - stream.began > self._timing.stream_answer:
                stream.close()
                self._failed(
                    job, f"nobody of this run has answered within {self._timing.stream_answer:g} s"
                )
            job.tunnel.look()

    # -- streams

    def _open(self, job: _Job) -> None:
        if job.live and not job.opening and not self._closed:
            job.opening = True
            self._openers.submit(functools.partial(self._open_stream, job))

    def _open_stream(self, job: _Job) -> None:
        """On a thread of its own: platforms take their time."""
        sock: socket.socket | None = None
        why = ""
        try:
            sock = job.open_stream()
        except Exception as error:
            # whatever it is, another stream is opened as long as the job lives
            why = str(error) or type(error).__name__
        # here where the reactor has ended, so that nothing stays open
        self._reactor.call_and_wait(functools.partial(self._opened, job, sock, why))

    def _opened(self, job: _Job, sock: socket.socket | None, why: str) -> None:
        if sock is None:
            self._failed(job, why)
        elif self._closed or not job.live:
            sock.close()
        else:
            job.unproven = TunnelStream(
                self._reactor,
                sock,
                dialer_handshake(self._credentials, self._hello, job.ident),
                on_proven=functools.partial(self._proven, job),
                on_end=lambda _, why: self._failed(job, why),
            )

    def _proven(self, job: _Job, stream: TunnelStream) -> None:
        job.unproven = None
        job.opening = False
        job.proven = time.monotonic()
        job.failures = 0
        self._is_reported = False
        job.tunnel.attach(stream)
        if not self._is_measured:
            job.tunnel.probe(_PROBE, self._measured)

    def _measured(self, speed: tuple[float, float]) -> None:
        if not self._is_measured:
            self._is_measured = True
            self._on_speed(speed)

    def _broken(self, job: _Job, why: str) -> None:
        log.debug("fiber: the stream into %s is broken: %s", job.name, why)
        self._check(job)
        if time.monotonic() - job.proven < self._timing.stream_backoff[0]:
            # the next one may be of as little use
            job.opening = True
            self._failed(job, why)
        else:
            self._open(job)

    def _failed(self, job: _Job, why: str) -> None:
        """A stream could not be opened, or nobody of this run and job is at its end."""
        job.unproven = None
        if not job.live or self._closed:
            job.opening = False
            return
        now = time.monotonic()
        if not job.failures:
            job.failing_since = now
        backoff = self._timing.stream_backoff
        delay = backoff[min(job.failures, len(backoff) - 1)]
        job.failures += 1
        log.debug("fiber: no stream into %s: %s", job.name, why)
        if not self._is_reported and now - job.failing_since > self._timing.stream_greeting:
            # once, and not for each job
            self._is_reported = True
            log.warning(
                "fiber: no stream can be opened into %s, which reaches this program by streams alone; "
                "it is tried again and again: %s",
                job.name,
                why,
            )

        def again() -> None:
            job.opening = False
            self._open(job)

        self._reactor.call_later(delay, again)

    def _check(self, job: _Job) -> None:
        """End the tunnel of a job that has ended, once its connections have, or can go on no more."""
        if job.live or job not in self._ended:
            return
        job.tunnel.end_if_broken()
        if job.tunnel.is_idle:
            self._ended.discard(job)
            job.tunnel.close()
            if job.unproven is not None:
                job.unproven.close()
                job.unproven = None

    # -- connections

    def _accept(self, url: str) -> socket.socket | str:
        """Make the connection that a process of a job asks for, to this process or another job."""
        route = routes.parse(url)
        why = f"nobody of this run is at {url}"
        if route is None:
            return why
        if route.ident == self._hello.ident:
            if route not in self._served:
                log.debug("fiber: %s is not reached: this process does not listen there", route)
                return why
            try:
                return connect(route.host, route.port)
            except WireError as error:
                log.debug("fiber: %s is not reached: %s", route, error)
                return why
        if route.job not in self._jobs:
            return why
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self._dialled(route, far)
        return near

    def _dialled(self, route: Route, connection: socket.socket) -> None:
        """Carry a connection of this host into a job."""
        job = self._jobs.get(route.job)
        if job is None:
            connection.close()
        else:
            job.tunnel.open(str(route), connection)
