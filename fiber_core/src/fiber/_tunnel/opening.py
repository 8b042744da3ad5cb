"""Opens streams into jobs beside the reactor, and greets whoever is at their ends."""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
from collections import deque
from typing import Protocol

from fiber._tunnel.buffered import Lines
from fiber._tunnel.greeting import HubSide
from fiber._tunnel.shore import Shore
from fiber._wire.reactor import Reactor
from fiber.exceptions import HandshakeError, WireError

__all__ = ["Opener", "Use"]

log = logging.getLogger("fiber")

#: streams that are being opened at once
_AT_ONCE = 16
#: seconds for a greeting
_PATIENCE = 10.0


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
    """

    def __init__(self, reactor: Reactor, key: bytes) -> None:
        self._reactor = reactor
        self._key = key
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
        for greeting in list(self._greetings):
            if now - greeting.since > _PATIENCE:
                self._failed(greeting)

    def close(self) -> None:
        """Open no more; those under way are closed when they are open."""
        self._closed = True
        self._todo.clear()
        for greeting in list(self._greetings):
            greeting.lines.close()
        self._greetings.clear()

    def abandon(self) -> None:
        """In a process forked by the user."""
        for greeting in self._greetings:
            greeting.lines.abandon()

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
                log.debug("fiber: no stream into %s: %s", shore.name, error)
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
            on_end=lambda _: self._failed(greeting),
        )

    def _line(self, greeting: _Greeting, line: str) -> None:
        try:
            answer = greeting.side.receive(line)
        except (WireError, HandshakeError) as error:
            log.warning("fiber: a stream into %s is closed: %s", greeting.shore.name, error)
            self._failed(greeting)
            return
        if answer is not None:
            greeting.lines.say(answer)
        if greeting.side.records is not None:
            self._greetings.discard(greeting)
            greeting.lines.protect(greeting.side.records)
            greeting.shore.worked()
            greeting.use.ready(greeting.lines)

    def _failed(self, greeting: _Greeting) -> None:
        self._greetings.discard(greeting)
        greeting.lines.close()
        greeting.use.failed()
