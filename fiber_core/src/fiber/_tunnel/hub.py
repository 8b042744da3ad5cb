"""The side that opens streams: keeps some spare ones in each job, and joins connections to them.

Streams are opened beside the reactor, for platforms take their time; whoever is at their ends proves
the run's key first. The first one is measured: its way there and back, and its bytes in a second.
:class:`Shore` is a job as this side sees it.
"""

from __future__ import annotations

import functools
import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fiber._tunnel import greeting, routes
from fiber._tunnel.buffered import Lines
from fiber._tunnel.crossing import Crossing
from fiber._tunnel.greeting import HubSide
from fiber._tunnel.ports import Ports, connect
from fiber._tunnel.routes import Route
from fiber._wire import fork
from fiber._wire.reactor import Reactor
from fiber.exceptions import HandshakeError, WireError
from fiber.model.timing import Timing

__all__ = ["Hub", "Opener", "Probe", "Shore", "Spare", "Speed", "Use"]


class Spare:
    """A stream that waits to be taken."""

    def __init__(self, lines: Lines, now: float) -> None:
        self.lines = lines
        #: when it was heard of last
        self.heard = now


class Shore:
    """One job.

    Args:
        ident: of the job.
        name: for people.
        open_stream: opens a stream into it; waits, raises what the platform has to say.
        backoff: seconds until another try after streams that could not be opened.
    """

    def __init__(
        self,
        ident: str,
        name: str,
        open_stream: Callable[[], socket.socket],
        backoff: Sequence[float],
    ) -> None:
        self.ident = ident
        self.name = name
        self.open_stream = open_stream
        #: True from its start to its end
        self.live = False
        #: spare streams that are being opened
        self.opening = 0
        self.spares: set[Spare] = set()
        #: why the last stream could not be opened
        self.why = ""
        self._backoff = backoff
        self._failures = 0
        self._failing_since = 0.0

    def failed(self, now: float) -> float:
        """A stream could not be opened; seconds until the next try."""
        if not self._failures:
            self._failing_since = now
        delay = self._backoff[min(self._failures, len(self._backoff) - 1)]
        self._failures += 1
        return delay

    def fails_for(self, now: float) -> float:
        """Seconds for which no stream could be opened; 0 where the last one could."""
        return now - self._failing_since if self._failures else 0.0

    def worked(self) -> None:
        """A stream could be opened."""
        self._failures = 0


log = logging.getLogger("fiber")

#: streams that are being opened at once
_AT_ONCE = 16


class Use(Protocol):
    """What a stream is opened for; called on the reactor's thread."""

    @property
    def wanted(self) -> bool:
        """False where it is of no use any more."""

    def words(self) -> str:
        """What the landing is told of it."""

    def ready(self, lines: Lines) -> None:
        """The landing is of this run; what it says next is the use's affair."""

    def failed(self) -> None:
        """No stream, or nobody of this run at its end; it may be tried again."""


class _Greeting:
    def __init__(self, shore: Shore, use: Use, side: HubSide) -> None:
        self.shore = shore
        self.use = use
        self.side = side
        self.lines: Lines
        self.since = time.monotonic()


class Opener:
    """Methods are for the reactor's thread.

    Args:
        reactor: the hub's.
        key: of the run.
        patience: seconds for a greeting.
    """

    def __init__(self, reactor: Reactor, key: bytes, patience: float) -> None:
        self._reactor = reactor
        self._key = key
        self._patience = patience
        self._todo: deque[tuple[Shore, Use]] = deque()
        self._threads = 0
        self._greetings: set[_Greeting] = set()
        self._closed = False

    def open(self, shore: Shore, use: Use) -> None:
        """Open a stream for some use, which is told how that went."""
        if self._closed:
            return
        self._todo.append((shore, use))
        if self._threads < _AT_ONCE:
            self._threads += 1
            threading.Thread(target=self._run, name="fiber-streams", daemon=True).start()

    def look(self, now: float) -> None:
        """Give up those that do not answer."""
        for one in list(self._greetings):
            if now - one.since > self._patience:
                self._failed(one, f"nobody of this run has answered within {self._patience:g} s")

    def close(self) -> None:
        """Open no more; those under way are closed when they are open."""
        self._closed = True
        self._todo.clear()
        for one in list(self._greetings):
            one.lines.close()
        self._greetings.clear()

    def abandon(self) -> None:
        """In a process forked by the user."""
        for one in self._greetings:
            one.lines.abandon()

    def _run(self) -> None:
        """On a thread of its own: platforms take their time."""
        again = True
        while again:
            try:
                shore, use = self._todo.popleft()
            except IndexError:
                break
            sock: socket.socket | None = None
            try:
                sock = shore.open_stream()
            except Exception as error:
                # whatever it is, it is tried again as long as the job lives
                shore.why = str(error) or type(error).__name__
            # here where the reactor has ended, so that nothing stays open
            self._reactor.call_and_wait(functools.partial(self._opened, shore, use, sock))
            again = not self._closed
        self._reactor.call_soon(self._thread_ended)

    def _thread_ended(self) -> None:
        self._threads -= 1
        if self._todo:
            # what came while it was leaving
            self.open(*self._todo.popleft())

    def _opened(self, shore: Shore, use: Use, sock: socket.socket | None) -> None:
        if sock is None or self._closed or not use.wanted:
            if sock is not None:
                sock.close()
            if not self._closed:
                use.failed()
            return
        greeting = _Greeting(shore, use, HubSide(self._key, shore.ident, use.words()))
        self._greetings.add(greeting)
        greeting.lines = Lines(
            self._reactor,
            sock,
            on_line=functools.partial(self._line, greeting),
            on_end=lambda _: self._failed(greeting, "it ended before anybody had answered"),
        )

    def _line(self, greeting: _Greeting, line: str) -> None:
        try:
            answer = greeting.side.receive(line)
        except (WireError, HandshakeError) as error:
            log.warning("fiber: a stream into %s is closed: %s", greeting.shore.name, error)
            self._failed(greeting, str(error))
            return
        if answer is not None:
            greeting.lines.say(answer)
        if greeting.side.records is not None:
            self._greetings.discard(greeting)
            greeting.lines.protect(greeting.side.records)
            greeting.shore.worked()
            greeting.use.ready(greeting.lines)

    def _failed(self, greeting: _Greeting, why: str) -> None:
        greeting.shore.why = why
        self._greetings.discard(greeting)
        greeting.lines.close()
        greeting.use.failed()


#: bytes that are sent
_BYTES = 2**20

#: seconds there and back, and bytes in a second
Speed = tuple[float, float]


class Probe:
    """A stream that is opened to be measured, once.

    Args:
        shore: the job that it leads into.
        tell: called with what was found.
        fail: called where nothing was.
    """

    def __init__(
        self, shore: Shore, tell: Callable[[Speed], None], fail: Callable[[], None]
    ) -> None:
        self._shore = shore
        self._tell = tell
        self._fail = fail

    @property
    def wanted(self) -> bool:
        """As long as the job lives."""
        return self._shore.live

    def words(self) -> str:
        """What the landing is told."""
        return f"PROBE {_BYTES}"

    def ready(self, lines: Lines) -> None:
        """Send a byte, and when it is answered the others."""
        times = [time.monotonic()]

        def answered(_: str) -> None:
            times.append(time.monotonic())
            there_and_back = times[1] - times[0]
            if len(times) == 2:
                lines.send(bytes(_BYTES))
                return
            lines.close()
            took = max(times[2] - times[1] - there_and_back, 1e-3)
            self._tell((there_and_back, _BYTES / took))

        lines.on_line = answered
        lines.on_end = lambda _: self._fail()
        lines.send(b"\0")

    def failed(self) -> None:
        """Another stream may do."""
        self._fail()


#: streams that wait in each job for connections of its processes
SPARE = 2


class Hub:
    """The hub of a run. Public methods may be called from any thread.

    Args:
        key: of the run.
        ident: identity of this process.
        patience: seconds that a connection may be without a stream.
        on_speed: called once, with what was measured of the first stream.
        timing: durations of the run.
    """

    def __init__(
        self,
        key: bytes,
        ident: str,
        *,
        patience: float,
        on_speed: Callable[[Speed], None],
        timing: Timing = Timing(),
    ) -> None:
        self._ident = ident
        self._timing = timing
        self._patience = max(patience, self._timing.stream_answer)
        self._on_speed = on_speed
        self._measured = False
        # whether it was said that no stream can be opened
        self._told = False
        self._closed = False
        # where this process may be dialled
        self._served: set[Route] = set()
        self._shores: dict[str, Shore] = {}
        self._crossings: dict[str, Crossing] = {}
        # the job whose streams they use
        self._into: dict[str, Shore] = {}
        # those that began here
        self._departing: dict[str, _Dial] = {}
        self._beat = 0.0
        self._reactor = Reactor("fiber-hub")
        self._opener = Opener(self._reactor, key, self._timing.stream_answer)
        self._ports = Ports(self._departs)
        self._ports.serve(self._reactor)
        fork.register(self._reactor)
        fork.register(self)
        self._reactor.call_soon(self._tick)

    def way(self, url: str) -> str:
        """What is dialled on this host in place of a URL.

        Raises:
            TransportError: this process is ending.
        """
        route = routes.parse(url)
        if route is None:
            return url
        return route.direct if route.ident == self._ident else self._ports.way(route)

    def serve(self, url: str) -> None:
        """This process listens there, for jobs as well; they are let in nowhere else."""
        route = routes.parse(url)
        if route is not None:
            self._served.add(route)

    def withdraw(self, url: str) -> None:
        """This process listens there no more."""
        route = routes.parse(url)
        if route is not None:
            self._served.discard(route)

    def add(self, ident: str, name: str, open_stream: Callable[[], socket.socket]) -> None:
        """There is a job; :meth:`begin` tells when it runs."""
        shore = Shore(ident, name, open_stream, self._timing.stream_backoff)
        self._reactor.call_soon(lambda: self._shores.setdefault(ident, shore))

    def begin(self, ident: str) -> None:
        """A job runs: keep streams in it."""

        def act() -> None:
            shore = self._shores.get(ident)
            if shore is not None and not shore.live and not self._closed:
                shore.live = True
                self.refill(shore)

        self._reactor.call_soon(act)

    def remove(self, ident: str) -> None:
        """A job has ended; its connections end when their ends do."""

        def act() -> None:
            shore = self._shores.pop(ident, None)
            if shore is not None:
                self._leave(shore)
                self._ports.forget(ident)
                for sid in [sid for sid, one in self._into.items() if one is shore]:
                    self._end_if_broken(self._crossings[sid])

        self._reactor.call_soon(act)

    def close(self) -> None:
        """End it all. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._reactor.call_and_wait(self._end)
        self._reactor.stop()

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptors."""
        self._closed = True
        self._ports.abandon()
        self._opener.abandon()
        for crossing in self._crossings.values():
            crossing.abandon()
        for shore in self._shores.values():
            for spare in shore.spares:
                spare.lines.abandon()

    # -- on the reactor's thread from here on

    def _end(self) -> None:
        self._ports.close()
        self._opener.close()
        for shore in self._shores.values():
            self._leave(shore)
        for crossing in list(self._crossings.values()):
            crossing.abort()

    def _leave(self, shore: Shore) -> None:
        shore.live = False
        for spare in list(shore.spares):
            self._lost(shore, spare)

    def _tick(self) -> None:
        self._reactor.call_later(self._timing.heartbeat, self._tick)
        now = time.monotonic()
        for crossing in list(self._crossings.values()):
            if crossing.since is not None and now - crossing.since > self._patience:
                crossing.abort()
            crossing.look()
        self._opener.look(now)
        beats = now - self._beat >= self._timing.stream_heartbeat
        self._beat = now if beats else self._beat
        for shore in list(self._shores.values()):
            for spare in list(shore.spares):
                if now - spare.heard > self._timing.stream_silence:
                    self._lost(shore, spare)
                elif beats:
                    spare.lines.say("PING")

    # -- spare streams

    def refill(self, shore: Shore) -> None:
        """Have as many spare streams in a job as there are to be."""
        while shore.live and not self._closed and len(shore.spares) + shore.opening < SPARE:
            shore.opening += 1
            self._opener.open(shore, _Offer(self, shore))

    def later(self, shore: Shore, action: Callable[[], None]) -> None:
        """Try again what came to nothing."""
        if self._closed:
            return
        now = time.monotonic()
        self._reactor.call_later(shore.failed(now), action)
        log.debug("fiber: no stream into %s: %s", shore.name, shore.why)
        if not self._told and shore.live and shore.fails_for(now) > self._timing.stream_greeting:
            # once, and not for each job
            self._told = True
            log.warning(
                "fiber: no stream can be opened into %s, which reaches this program by streams alone; "
                "it is tried again and again: %s",
                shore.name,
                shore.why,
            )

    def waits(self, shore: Shore, lines: Lines) -> None:
        """A stream of a job waits to be taken."""
        spare = Spare(lines, time.monotonic())
        lines.on_line = functools.partial(self._taken, shore, spare)
        lines.on_end = lambda _: self._lost(shore, spare)
        shore.spares.add(spare)
        self._told = False
        if not self._measured:
            self._measured = True
            self._opener.open(shore, Probe(shore, self._on_speed, self._not_measured))

    def _not_measured(self) -> None:
        # the next stream is
        self._measured = False

    def _lost(self, shore: Shore, spare: Spare) -> None:
        shore.spares.discard(spare)
        spare.lines.close()
        self.refill(shore)

    def _taken(self, shore: Shore, spare: Spare, line: str) -> None:
        """The landing has a connection for a stream that waits."""
        spare.heard = time.monotonic()
        if line == "PING":
            return
        try:
            sid, theirs, where = greeting.split(line, "TAKE", 3)
            count = greeting.number(theirs)
        except WireError as error:
            log.warning("fiber: a stream into %s is closed: %s", shore.name, error)
            self._lost(shore, spare)
            return
        shore.spares.discard(spare)
        crossing = self._crossings.get(sid)
        if crossing is None:
            local = self._towards(routes.parse(where)) if not count else None
            if local is None:
                spare.lines.say(f"NO nobody of this run is at {where}")
                # it reads that, and closes the stream
                shore.spares.add(spare)
                return
            crossing = self._crossing(shore, sid, local)
        spare.lines.say(f"OK {crossing.received}")
        crossing.attach(*spare.lines.take(), count)
        self.refill(shore)

    # -- connections

    def _towards(self, route: Route | None) -> socket.socket | None:
        """The end of a connection to one of the run; None where there is no such process."""
        if route is None:
            return None
        if route.ident == self._ident:
            if route not in self._served:
                log.debug("fiber: %s is not reached: this process does not listen there", route)
                return None
            try:
                return connect(route.host, route.port)
            except WireError as error:
                log.debug("fiber: %s is not reached: %s", route, error)
                return None
        if route.job not in self._shores:
            return None
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self._departs(route, far)
        return near

    def _departs(self, route: Route, connection: socket.socket) -> None:
        """A connection into a job."""
        shore = self._shores.get(route.job)
        if shore is None:
            connection.close()
            return
        crossing = self._crossing(shore, secrets.token_hex(8), connection)
        dial = self._departing[crossing.sid] = _Dial(self, shore, crossing, route)
        self._opener.open(shore, dial)

    def _crossing(self, shore: Shore, sid: str, local: socket.socket) -> Crossing:
        crossing = Crossing(
            self._reactor,
            sid,
            local,
            on_broken=self._broken,
            on_over=self._over,
            timing=self._timing,
        )
        self._crossings[sid] = crossing
        self._into[sid] = shore
        return crossing

    def _broken(self, crossing: Crossing) -> None:
        dial = self._departing.get(crossing.sid)
        if not self._end_if_broken(crossing) and dial is not None:
            self._opener.open(dial.shore, dial)

    def _end_if_broken(self, crossing: Crossing) -> bool:
        """A connection without a stream ends with its job."""
        ends = crossing.since is not None and not self._into[crossing.sid].live
        if ends:
            crossing.abort()
        return ends

    def _over(self, crossing: Crossing) -> None:
        self._crossings.pop(crossing.sid, None)
        self._into.pop(crossing.sid, None)
        self._departing.pop(crossing.sid, None)

    def again(self, dial: _Dial) -> None:
        """A connection into a job got no stream: another one, while both are there."""
        if not dial.wanted:
            return
        if dial.shore.live:
            self.later(dial.shore, lambda: self._opener.open(dial.shore, dial))
        else:
            dial.crossing.abort()


class _Offer:
    """A stream that is to wait."""

    def __init__(self, hub: Hub, shore: Shore) -> None:
        self._hub = hub
        self._shore = shore

    @property
    def wanted(self) -> bool:
        return self._shore.live

    def words(self) -> str:
        return "OFFER"

    def ready(self, lines: Lines) -> None:
        self._shore.opening -= 1
        if self._shore.live:
            self._hub.waits(self._shore, lines)
        else:
            lines.close()

    def failed(self) -> None:
        def again() -> None:
            self._shore.opening -= 1
            self._hub.refill(self._shore)

        self._hub.later(self._shore, again)


class _Dial:
    """A stream for a connection into a job, each time it needs one."""

    def __init__(self, hub: Hub, shore: Shore, crossing: Crossing, route: Route) -> None:
        self.shore = shore
        self.crossing = crossing
        self._hub = hub
        self._route = route

    @property
    def wanted(self) -> bool:
        return not self.crossing.is_over and self.crossing.since is not None

    def words(self) -> str:
        return f"DIAL {self.crossing.sid} {self.crossing.received} {self._route.place}"

    def ready(self, lines: Lines) -> None:
        def answered(line: str) -> None:
            try:
                (theirs,) = greeting.split(line, "OK", 1)
                count = greeting.number(theirs)
            except WireError as error:
                log.debug("fiber: %s is not reached: %s", self._route, error)
                lines.close()
                self.crossing.abort()
                return
            self.crossing.attach(*lines.take(), count)

        lines.on_line = answered
        lines.on_end = lambda _: self.failed()

    def failed(self) -> None:
        self._hub.again(self)
