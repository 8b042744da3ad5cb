"""The connection of a job's supervisor to the parent: made, kept, made again; on a thread of its own.

The supervisor's own thread must reap and pass signals on whatever becomes of the network, so it
only puts words in and takes news out.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from fiber._agent.lease import INTERVAL
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._base import values
from fiber._wire.frames import Kind
from fiber._wire.link import Link
from fiber.exceptions import HandshakeError, TransportError, WireError

__all__ = ["Connected", "Line", "Lost", "News", "Receipt", "Refused", "Said"]

#: seconds between two attempts to reach the parent
_AGAIN = 0.2
#: signs of life that may go unanswered before no more are sent: a parent that is stopped reads
#: none, and whoever waits for room in its buffers sends nothing else
_UNANSWERED = 8


@values.frozen
class Connected:
    """The parent was reached, for the first time or again."""


@values.frozen
class Lost:
    """The connection is gone, or could not be made."""

    why: str


@values.frozen
class Refused:
    """The parent wants nothing to do with this job; no other attempt is made."""

    why: str


@values.frozen
class Said:
    """The parent said something."""

    message: object


@values.frozen
class Receipt:
    """The parent has taken in what was sent by :meth:`Line.report`."""


News = Connected | Lost | Refused | Said | Receipt


class Line:
    """Words to the parent and news from it.

    Args:
        urls: where the parent may listen, best first.
        connect: makes a link to one of them, or raises TransportError.
        on_news: called on the thread when there is something to :meth:`take`; must not wait.
        more: the next message of those that wait elsewhere; sent before any word that follows it.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        connect: Callable[[str], Link],
        on_news: Callable[[], None],
        more: Callable[[], object | None] = lambda: None,
    ) -> None:
        self._more = more
        self._urls = urls
        self._connect = connect
        self._on_news = on_news
        self._news: deque[News] = deque()
        self._words: deque[tuple[Kind, bytes]] = deque()
        self._closing = False
        self._unanswered = 0
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._run, name="fiber-line", daemon=True)

    def start(self) -> None:
        """Begin; no fork may follow."""
        self._thread.start()

    def take(self) -> list[News]:
        """What has happened since the last call."""
        taken = []
        while self._news:
            taken.append(self._news.popleft())
        return taken

    def tell(self, message: object) -> None:
        """Send a message, if there is a connection: what counts is told again with the next."""
        self._words.append((Kind.CAST, encode(message)))
        self._wake()

    def report(self, message: object) -> None:
        """The same for one of which :class:`Receipt` is to tell that it has arrived."""
        self._words.append((Kind.CALL, encode(message)))
        self._wake()

    def wake(self) -> None:
        """There may be more."""
        self._wake()

    def close(self, *, timeout: float = 2.0) -> None:
        """End the connection and the thread, without waiting for ever."""
        self._closing = True
        self._wake()
        link = self._link
        if link is not None:
            # whoever waits for room in it is let go
            link.close()
        self._thread.join(timeout)

    # -- the thread

    def _run(self) -> None:
        while not self._closing:
            try:
                link = self._dial()
            except HandshakeError as error:
                self._tell(Refused(str(error)) if error.proven else Lost(str(error)))
                if error.proven:
                    return
                self._pause(_AGAIN)
                continue
            except TransportError as error:
                self._tell(Lost(str(error)))
                self._pause(_AGAIN)
                continue
            self._link = link
            # what was meant for the connection before is out of date
            self._words.clear()
            self._unanswered = 0
            self._tell(Connected())
            try:
                self._serve(link)
            except (TransportError, WireError) as error:
                if not self._closing:
                    self._tell(Lost(str(error)))
            finally:
                self._link = None
                link.close()

    def _dial(self) -> Link:
        failure: TransportError | None = None
        for url in self._urls:
            try:
                return self._connect(url)
            except TransportError as error:
                if isinstance(error, HandshakeError) and error.proven:
                    raise
                failure = error
        assert failure is not None
        raise failure

    def _serve(self, link: Link) -> None:
        poll = select.poll()
        for fd in (*link.fds, self._wake_reader):
            poll.register(fd, select.POLLIN)
        beat = time.monotonic()
        while not self._closing:
            now = time.monotonic()
            if now >= beat:
                beat = now + INTERVAL
                if self._unanswered < _UNANSWERED:
                    self._unanswered += 1
                    link.send(Kind.CAST, 0, 0, [encode(messages.Ping())])
            self._send_more(link)
            while self._words:
                kind, word = self._words.popleft()
                self._send_more(link)
                link.send(kind, 0, 1, [word])
            self._receive(link)
            if not link.buffered:
                poll.poll(1000 * max(0.0, beat - time.monotonic()))
            self._drain()

    def _send_more(self, link: Link) -> None:
        while (message := self._more()) is not None:
            link.send(Kind.CAST, 0, 1, [encode(message)])

    def _receive(self, link: Link) -> None:
        while (message := link.receive(timeout=0)) is not None:
            self._unanswered = 0
            if message.kind is Kind.REPLY:
                self._tell(Receipt())
            elif message.kind is Kind.ERROR:
                self._tell(Refused("the parent does not know this job any more"))
            elif message.kind is Kind.CAST:
                decoder = Decoder()
                decoder.feed(bytes(message.body))
                for said in decoder.messages():
                    self._tell(Said(said))

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self._on_news()

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"w")
        except BlockingIOError:
            # it is about to wake
            return

    def _drain(self) -> None:
        try:
            os.read(self._wake_reader, 4096)
        except BlockingIOError:
            return

    def _pause(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        if not self._closing:
            poll.poll(1000 * seconds)
        self._drain()
