"""The side into which streams are opened, in the supervisor of a job.

It runs no code of users and unpickles nothing: it copies bytes. Processes of the job ask it, by
lines on a Unix socket in their private directory, for the address to dial in place of a route, and tell where they listen.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fiber._base.sockets import Buffered, accept_on
from fiber._base.threads import Reactor
from fiber._tunnel import routes
from fiber._tunnel.routes import Ports, Route, connect
from fiber._tunnel.tunnel import Tunnel, TunnelStream, listener_handshake
from fiber._wire.handshake import Credentials, Hello
from fiber.exceptions import TransportError, WireError
from fiber.model.timing import Timing

log = logging.getLogger("fiber")

#: most streams whose other side has not proved itself
_UNPROVEN = 64
#: name of the socket by which processes of the job ask
_QUERIES = "tunnel"
#: bytes of the longest question
_LONGEST = 1024
#: what they say in front of a URL: that they want to reach it, or that they listen there
_RESOLVE, _REGISTER = "resolve", "register"
#: in front of the number of a descriptor
_INHERITED = "fd:"
#: bytes of a socket's path that every system takes
_LONGEST_PATH = 100


class _Question:
    """A connection by which a process of the job asks, and the places where that process listens."""

    def __init__(self) -> None:
        self.socket: Buffered
        self.partial = b""
        self.places: set[str] = set()


class TunnelServer:
    """The tunnel's end in a job. Made before its processes are forked, serves from :meth:`serve` on.

    Args:
        where: ``HOST:PORT``, a path, or ``fd:NUMBER`` of a socket that is bound, where streams come in.
        credentials: of the run.
        ident: of the job.
        patience: seconds that a connection may be without a stream.
        timing: durations of the run.

    Raises:
        TransportError: it cannot listen there.
    """

    def __init__(
        self,
        where: str,
        *,
        credentials: Credentials,
        ident: str,
        patience: float,
        timing: Timing = Timing(),
    ) -> None:
        self._credentials = credentials
        self._ident = ident
        self._timing = timing
        self._patience = max(patience, timing.stream_answer)
        self._ports = Ports(self._dialled)
        self._where = where
        self._listener = _listen(where)
        self._queries: socket.socket | None = None
        self._reactor: Reactor | None = None
        self._tunnel: Tunnel
        self._unproven: set[TunnelStream] = set()
        # streams that came, that said something, and whose other side proved itself
        self._came = self._spoke = self._proved = 0
        self._began = time.monotonic()
        self._questions: set[_Question] = set()

    def resolve(self, url: str) -> str:
        """Address that processes of this job dial in place of a URL.

        Raises:
            TransportError: it cannot be reached.
        """
        route = routes.parse(url)
        if route is None:
            return url
        if route.job == self._ident:
            return route.direct
        return self._ports.resolve(route)

    def missing(self) -> str:
        """Reason why no process of the job reaches the parent; "" once a stream of its has come."""
        if self._proved:
            return ""
        since = time.monotonic() - self._began
        msg = f"no stream was opened into this job at {self._where} within {since:.0f} s"
        if self._spoke or any(stream.has_spoken for stream in list(self._unproven)):
            return f"{msg} ({self._came} came, none of which proved that it is the parent's)"
        return f"{msg} ({self._came} came and said nothing)" if self._came else msg

    def abandon(self) -> None:
        """In a forked child: close the descriptors."""
        self._listener.close()
        self._ports.abandon()

    def serve(self, folder: str) -> None:
        """Begin; no fork may follow.

        Args:
            folder: private to the job, where its processes ask.
        """
        self._queries = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(Path(folder) / _QUERIES) as path:
            self._queries.bind(path)
        self._queries.listen(64)
        self._queries.setblocking(False)
        self._began = time.monotonic()
        self._reactor = reactor = Reactor("fiber-tunnel")
        self._tunnel = Tunnel(
            reactor,
            is_client=False,
            accept=self._accept,
            patience=self._patience,
            timing=self._timing,
        )
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
        assert self._queries is not None
        pause = self._timing.accept_pause
        accept_on(self._reactor, self._listener, self._stream_came, pause=pause)
        accept_on(self._reactor, self._queries, self._somebody_asks, pause=pause)
        self._tick()

    def _end(self) -> None:
        assert self._reactor is not None
        for listener in (self._listener, self._queries):
            if listener is not None and listener.fileno() >= 0:
                self._reactor.watch(listener.fileno(), None, None)
                listener.close()
        self._ports.close()
        for stream in self._unproven:
            stream.close()
        self._unproven.clear()
        for question in self._questions:
            question.socket.close()
        self._questions.clear()
        self._tunnel.close()

    def _tick(self) -> None:
        assert self._reactor is not None
        self._reactor.call_later(self._timing.heartbeat, self._tick)
        now = time.monotonic()
        for stream in list(self._unproven):
            if now - stream.began > self._timing.stream_greeting:
                self._dismiss(stream)
        self._tunnel.look()

    # -- streams

    def _stream_came(self, sock: socket.socket) -> None:
        assert self._reactor is not None
        self._came += 1
        if len(self._unproven) >= _UNPROVEN:
            # whoever knows the key says so at once; the newest may be the one that does, or one
            # whose proof is on a long way
            self._dismiss(min(self._unproven, key=lambda one: (one.has_greeted, one.began)))
        self._unproven.add(
            TunnelStream(
                self._reactor,
                sock,
                listener_handshake(self._credentials, Hello.mine(self._ident), self._ident),
                on_proven=self._proven,
                on_end=self._ended,
            )
        )

    def _proven(self, stream: TunnelStream) -> None:
        self._proved += 1
        self._unproven.discard(stream)
        self._tunnel.attach(stream)

    def _ended(self, stream: TunnelStream, why: str) -> None:
        log.debug("fiber: a stream is closed: %s", why)
        self._dismiss(stream)

    def _dismiss(self, stream: TunnelStream) -> None:
        self._spoke += stream.has_spoken
        self._unproven.discard(stream)
        stream.close()

    # -- connections

    def _dialled(self, route: Route, connection: socket.socket) -> None:
        """Carry a connection of a process of this job."""
        self._tunnel.open(str(route), connection)

    def _accept(self, url: str) -> socket.socket | str:
        """Make a connection to a process of this job that listens."""
        route = routes.parse(url)
        place = url if route is None else route.place
        if route is None or not any(place in one.places for one in self._questions):
            return f"nobody of this job listens at {place}"
        try:
            return connect(route.host, route.port)
        except WireError as error:
            return str(error)

    # -- questions of the job's processes

    def _somebody_asks(self, sock: socket.socket) -> None:
        assert self._reactor is not None
        question = _Question()
        self._questions.add(question)
        question.socket = Buffered(
            self._reactor,
            sock,
            on_data=lambda data: self._read_question(question, data),
            on_end=lambda _: self._end_question(question),
        )

    def _read_question(self, question: _Question, data: bytes) -> None:
        *lines, question.partial = (question.partial + data).split(b"\n")
        for line in lines:
            self._answer(question, line[:_LONGEST].decode("ascii", "replace"))
        if len(question.partial) > _LONGEST:
            self._end_question(question)

    def _end_question(self, question: _Question) -> None:
        self._questions.discard(question)
        question.socket.close()

    def _own(self, url: str) -> Route:
        route = routes.parse(url)
        if route is None or route.job != self._ident:
            msg = f"{url} is no address of a process of job {self._ident}"
            raise TransportError(msg)
        return route

    def _answer(self, question: _Question, line: str) -> None:
        word, _, url = line.partition(" ")
        try:
            if word == _REGISTER:
                question.places.add(self._own(url).place)
                answer = {"url": url}
            else:
                answer = {"url": self.resolve(url)}
        except TransportError as error:
            answer = {"error": str(error)}
        question.socket.write([json.dumps(answer).encode() + b"\n"])


def resolve(folder: Path, url: str, *, timeout: float) -> str:
    """Ask the supervisor of this process's job, in so many seconds, for the address to dial in place of a URL.

    Raises:
        TransportError: it does not answer, or knows none.
    """
    sock, answer = _ask(folder, _RESOLVE, url, timeout)
    sock.close()
    return answer["url"]


def register(folder: Path, url: str, *, timeout: float) -> socket.socket:
    """Tell the supervisor of this process's job, in so many seconds, where the process listens.

    Returns:
        A socket to close when it listens there no more.

    Raises:
        TransportError: it does not answer, or that is no address of the job's.
    """
    return _ask(folder, _REGISTER, url, timeout)[0]


def _ask(folder: Path, word: str, url: str, timeout: float) -> tuple[socket.socket, dict[str, str]]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with _short(folder / _QUERIES) as path:
            sock.connect(path)
        sock.sendall(f"{word} {url}\n".encode())
        with sock.makefile("rb") as lines:
            answer: dict[str, str] = json.loads(lines.readline(_LONGEST))
    except (OSError, ValueError) as error:
        sock.close()
        msg = f"the supervisor of this job does not answer about {url}: {error}"
        raise TransportError(msg) from error
    if "error" in answer:
        sock.close()
        raise TransportError(answer["error"])
    return sock, answer


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
