"""The side into which streams are opened: hands each connection of its processes to one that waits.

It runs no code of users and unpickles nothing: it copies bytes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from fiber._tunnel import greeting, routes
from fiber._tunnel.buffered import Lines
from fiber._tunnel.crossing import Crossing
from fiber._tunnel.ports import Ports, connect
from fiber._tunnel.routes import Route
from fiber._wire.reactor import Reactor
from fiber.exceptions import HandshakeError, TransportError, WireError
from fiber.model.timing import Timing

__all__ = ["Landing", "ask", "serve"]

log = logging.getLogger("fiber")

#: most streams of which it is not known yet what they are for
_UNPROVEN = 64
#: name of the socket by which processes of the job ask for ways
_DESK = "landing"
#: what they say in front of a URL: that they want to reach it, or that they listen there
_WAY, _SERVE = "way", "serve"
#: in front of the number of a descriptor
_INHERITED = "fd:"
#: bytes of a socket's path that every system takes
_LONGEST_PATH = 100


class _Stream:
    """A stream before it carries a connection."""

    def __init__(self, key: bytes, job: str) -> None:
        self.side = greeting.LandingSide(key, job)
        self.lines: Lines
        #: what it is being taken for
        self.crossing: Crossing | None = None
        self.heard = self.since = time.monotonic()
        self.waits = False

    @property
    def is_proven(self) -> bool:
        """True once the hub has said what it is for."""
        return self.side.words is not None


class Landing:
    """Of one job. Made before its processes are forked, serves from :meth:`serve` on.

    Args:
        where: ``HOST:PORT``, a path, or ``fd:NUMBER`` of a socket that is bound, where the hub's
            streams come in.
        key: of the run.
        ident: of the job.
        patience: seconds that a connection may be without a stream.
        timing: durations of the run.

    Raises:
        TransportError: it cannot listen there.
    """

    def __init__(
        self, where: str, *, key: bytes, ident: str, patience: float, timing: Timing = Timing()
    ) -> None:
        self._key = key
        self._ident = ident
        self._timing = timing
        self._patience = max(patience, self._timing.stream_answer)
        self._ports = Ports(self._departs)
        self._where = where
        self._listener = _listen(where)
        self._desk: socket.socket | None = None
        self._folder: Path | None = None
        self._reactor: Reactor | None = None
        self._streams: set[_Stream] = set()
        self._crossings: dict[str, Crossing] = {}
        # those that began here, and where they go
        self._departing: dict[str, Route] = {}
        self._queue: deque[Crossing] = deque()
        # how many streams came, said something, and proved that they are the hub's
        self._came = self._spoke = self._proved = 0
        self._began = time.monotonic()
        # connections of processes that asked something, and where these listen
        self._served: dict[Lines, set[str]] = {}
        self._beat = 0.0

    def way(self, url: str) -> str:
        """What processes of this job dial in place of a URL.

        Raises:
            TransportError: there is no way.
        """
        route = routes.parse(url)
        if route is None:
            return url
        if route.job == self._ident:
            return route.direct
        return self._ports.way(route)

    def missing(self) -> str:
        """Why no process of the job reaches the parent; "" where a stream of the hub has come."""
        if self._proved:
            return ""
        since = time.monotonic() - self._began
        msg = f"no stream was opened into this job at {self._where} within {since:.0f} s"
        if self._spoke:
            return f"{msg} ({self._came} came, none of which proved that it is the parent's)"
        return f"{msg} ({self._came} came and said nothing)" if self._came else msg

    def abandon(self) -> None:
        """In a forked child: close the descriptors."""
        self._listener.close()
        self._ports.abandon()

    def serve(self, folder: str) -> None:
        """Begin; no fork may follow.

        Args:
            folder: private to the job, where its processes ask for ways.
        """
        self._folder = Path(folder)
        self._desk = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(self._folder / _DESK) as path:
            self._desk.bind(path)
        self._desk.listen(64)
        self._desk.setblocking(False)
        self._began = time.monotonic()
        self._reactor = reactor = Reactor("fiber-landing")
        self._ports.serve(reactor)
        reactor.call_soon(self._begin)

    def close(self) -> None:
        """End it all. Idempotent."""
        reactor = self._reactor
        if reactor is None:
            self._listener.close()
            self._ports.close()
            self._forget_path()
            return
        reactor.call_and_wait(self._end)
        reactor.stop()
        self._forget_path()

    def _forget_path(self) -> None:
        if self._where.startswith("/"):
            with contextlib.suppress(OSError):
                os.unlink(self._where)  # noqa: PTH108 - a socket

    # -- on the reactor's thread from here on

    def _begin(self) -> None:
        assert self._reactor is not None
        assert self._desk is not None
        self._reactor.watch(self._listener.fileno(), self._accept_stream, None)
        self._reactor.watch(self._desk.fileno(), self._accept_question, None)
        self._tick()

    def _end(self) -> None:
        assert self._reactor is not None
        for listener in (self._listener, self._desk):
            if listener is not None and listener.fileno() >= 0:
                self._reactor.watch(listener.fileno(), None, None)
                listener.close()
        self._ports.close()
        for stream in list(self._streams):
            self._drop(stream)
        for lines in self._served:
            lines.close()
        self._served.clear()
        for crossing in list(self._crossings.values()):
            crossing.abort()

    def _tick(self) -> None:
        assert self._reactor is not None
        timing = self._timing
        self._reactor.call_later(timing.heartbeat, self._tick)
        now = time.monotonic()
        for crossing in list(self._crossings.values()):
            if crossing.since is not None and now - crossing.since > self._patience:
                crossing.abort()
            crossing.look()
        beats = now - self._beat >= timing.stream_heartbeat
        self._beat = now if beats else self._beat
        for stream in list(self._streams):
            idle = stream.waits and stream.crossing is None
            if idle:
                silent, patience = now - stream.heard, timing.stream_silence
            else:
                silent = now - stream.since
                patience = timing.stream_answer if stream.is_proven else timing.stream_greeting
            if silent > patience:
                self._lost(stream)
            elif idle and beats:
                stream.lines.say("PING")

    # -- streams

    def _accept_stream(self) -> None:
        assert self._reactor is not None
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock, _ = self._listener.accept()
            self._came += 1
            sock.setblocking(False)
            unproven = [stream for stream in self._streams if not stream.is_proven]
            if len(unproven) >= _UNPROVEN:
                # whoever knows the key says so at once; the newest may be the one that does
                self._drop(min(unproven, key=lambda stream: stream.since))
            stream = _Stream(self._key, self._ident)
            stream.lines = Lines(
                self._reactor,
                sock,
                on_line=lambda line: self._line(stream, line),
                on_end=lambda _: self._lost(stream),
            )
            self._streams.add(stream)
            stream.lines.say(stream.side.hello())

    def _line(self, stream: _Stream, line: str) -> None:
        try:
            if not stream.is_proven:
                self._spoke += 1
                stream.lines.say(stream.side.receive(line))
                self._proved += 1
                records = stream.side.records
                assert records is not None
                stream.lines.protect(records)
                stream.since = time.monotonic()
                self._begins(stream, stream.side.words or "")
            elif stream.crossing is not None and line != "PING":
                self._answered(stream, stream.crossing, line)
            else:
                stream.heard = time.monotonic()
        except (WireError, HandshakeError) as error:
            log.debug("fiber: a stream is closed: %s", error)
            self._lost(stream)

    def _begins(self, stream: _Stream, words: str) -> None:
        word = words.partition(" ")[0]
        if word == "OFFER":
            stream.waits = True
            stream.heard = time.monotonic()
            self._match()
        elif word == "PROBE":
            (count,) = greeting.split(words, "PROBE", 1)
            self._measure(stream, greeting.number(count))
        else:
            self._arrives(stream, *greeting.split(words, "DIAL", 3))

    def _measure(self, stream: _Stream, count: int) -> None:
        def first() -> None:
            stream.lines.say("DONE")
            stream.lines.skip(count, lambda: stream.lines.say("DONE"))

        stream.lines.skip(1, first)

    def _drop(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        stream.lines.close()

    def _lost(self, stream: _Stream) -> None:
        self._drop(stream)
        crossing, stream.crossing = stream.crossing, None
        if crossing is not None and not crossing.is_over:
            # the next one; before others, for it was first
            self._queue.appendleft(crossing)
            self._match()

    # -- connections

    def _departs(self, route: Route, connection: socket.socket) -> None:
        """A process of the job dialled something behind the hub."""
        crossing = self._crossing(secrets.token_hex(8), connection)
        self._departing[crossing.sid] = route
        self._queue.append(crossing)
        self._match()

    def _arrives(self, stream: _Stream, sid: str, theirs: str, where: str) -> None:
        """The hub has a connection for one who listens here."""
        crossing = self._crossings.get(sid)
        if crossing is None:
            host, _, port = where.rpartition(":")
            if theirs != "0":
                stream.lines.say("NO it was given up")
                return
            if not any(where in served for served in self._served.values()):
                stream.lines.say(f"NO nobody of this job listens at {where}")
                return
            crossing = self._crossing(sid, connect(host.strip("[]"), greeting.number(port)))
        self._attach(stream, crossing, theirs, f"OK {crossing.received}")

    def _answered(self, stream: _Stream, crossing: Crossing, line: str) -> None:
        """The hub takes a connection, or does not."""
        if line.startswith("NO "):
            log.debug("fiber: %s is not reached: %s", self._departing.get(crossing.sid), line)
            stream.crossing = None
            self._drop(stream)
            crossing.abort()
            return
        (theirs,) = greeting.split(line, "OK", 1)
        self._attach(stream, crossing, theirs)

    def _attach(self, stream: _Stream, crossing: Crossing, theirs: str, line: str = "") -> None:
        count = greeting.number(theirs)
        if line:
            stream.lines.say(line)
        self._streams.discard(stream)
        crossing.attach(*stream.lines.take(), count)

    def _match(self) -> None:
        while self._queue:
            idle = (one for one in self._streams if one.waits and one.crossing is None)
            # that which was heard of last is the likeliest to be there
            stream = max(idle, key=lambda one: one.heard, default=None)
            if stream is None:
                return
            crossing = self._queue.popleft()
            if crossing.is_over:
                continue
            stream.crossing = crossing
            stream.since = time.monotonic()
            route = self._departing[crossing.sid]
            stream.lines.say(f"TAKE {crossing.sid} {crossing.received} {route}")

    def _crossing(self, sid: str, connection: socket.socket) -> Crossing:
        assert self._reactor is not None
        crossing = Crossing(
            self._reactor,
            sid,
            connection,
            on_broken=self._broken,
            on_over=self._over,
            timing=self._timing,
        )
        self._crossings[sid] = crossing
        return crossing

    def _broken(self, crossing: Crossing) -> None:
        if crossing.sid in self._departing:
            self._queue.append(crossing)
            self._match()

    def _over(self, crossing: Crossing) -> None:
        self._crossings.pop(crossing.sid, None)
        self._departing.pop(crossing.sid, None)

    # -- questions of the job's processes

    def _accept_question(self) -> None:
        assert self._desk is not None
        assert self._reactor is not None
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock, _ = self._desk.accept()
            sock.setblocking(False)

            lines = Lines(
                self._reactor,
                sock,
                on_line=lambda line: self._answer(lines, line),
                on_end=lambda _: self._unserve(lines),
            )
            self._served[lines] = set()

    def _own(self, url: str) -> Route:
        route = routes.parse(url)
        if route is None or route.job != self._ident:
            msg = f"{url} is no address of a process of job {self._ident}"
            raise TransportError(msg)
        return route

    def _unserve(self, lines: Lines) -> None:
        self._served.pop(lines, None)

    def _answer(self, lines: Lines, question: str) -> None:
        word, _, url = question.partition(" ")
        try:
            if word == _SERVE:
                self._served[lines].add(self._own(url).place)
                told = {"served": url}
            else:
                told = {"way": self.way(url)}
        except TransportError as error:
            told = {"error": str(error)}
        lines.say(json.dumps(told))


def ask(folder: Path, url: str, *, timeout: float) -> str:
    """Ask the landing of this process's job, in so many seconds, for the way to a URL.

    Raises:
        TransportError: it does not answer, or knows none.
    """
    sock, told = _ask(folder, _WAY, url, timeout)
    sock.close()
    return told["way"]


def serve(folder: Path, url: str, *, timeout: float) -> socket.socket:
    """Tell the landing of this process's job, in so many seconds, where the process listens.

    Returns:
        what is to be closed when it listens there no more.

    Raises:
        TransportError: it does not answer, or that is no address of the job's.
    """
    return _ask(folder, _SERVE, url, timeout)[0]


def _ask(folder: Path, word: str, url: str, timeout: float) -> tuple[socket.socket, dict[str, str]]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with _short(folder / _DESK) as path:
            sock.connect(path)
        sock.sendall(f"{word} {url}\n".encode())
        with sock.makefile("rb") as answer:
            told: dict[str, str] = json.loads(answer.readline(greeting.LONGEST))
    except (OSError, ValueError) as error:
        sock.close()
        msg = f"the supervisor of this job does not answer about {url}: {error}"
        raise TransportError(msg) from error
    if "error" in told:
        sock.close()
        raise TransportError(told["error"])
    return sock, told


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A socket's path as the system takes it, however deep its folder lies."""
    if len(os.fsencode(path)) < _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # where there is no such thing, the system says that the path is too long
        by_number = Path(f"/proc/self/fd/{folder}")
        yield str(by_number / path.name if by_number.exists() else path)
    finally:
        os.close(folder)


def _listen(where: str) -> socket.socket:
    try:
        if where.startswith("/"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(where)  # noqa: PTH108 - a socket of a job before, if there is one
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            before = os.umask(0o177)
            try:
                listener.bind(where)
            finally:
                os.umask(before)
            listener.listen(64)
        elif where.startswith(_INHERITED):
            listener = socket.socket(fileno=int(where.removeprefix(_INHERITED)))
            # it is nobody else's
            listener.set_inheritable(False)
            listener.listen(64)
        else:
            host, _, port = where.rpartition(":")
            listener = socket.create_server((host.strip("[]"), int(port)), backlog=64)
    except (OSError, ValueError) as error:
        msg = f"streams of the parent cannot come in at {where}: {error}"
        raise TransportError(msg) from error
    listener.setblocking(False)
    return listener
