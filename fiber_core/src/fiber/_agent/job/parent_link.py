"""Connection of a job's supervisor to the parent, on a thread of its own, and output on its way there.

The connection is made, kept and made again. The supervisor's main thread must reap and pass signals on whatever
happens to the network, so it only queues messages and takes events; of output, which goes to the job's own log
besides, a queue between the two threads keeps the latest. Apart from ``server``, so that the thread's code is in one
place.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable

from fiber._agent.instructions import connect_to_any
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._agent.supervisor.output import LinePrefix, Sink
from fiber._base import values
from fiber._base.threads import Loop, drained, wake, wake_pipe
from fiber._wire.descriptors import Descriptors
from fiber._wire.frames import Kind
from fiber._wire.link import Link
from fiber.exceptions import HandshakeError, TransportError, WireError
from fiber.model.timing import Timing

#: bytes in one message
_PIECE = 1 << 16
#: bytes on their way above which writers are held back, and below which they may go on
_HIGH, _LOW = 1 << 20, 1 << 19


class OutputForwarder:
    """Queue of output for the parent, from the event loop to the parent link's thread.

    While there is no connection the latest are kept: writers are not held back for a parent that may
    never come back, and the job's log has everything.

    Args:
        wake: wakes the thread of the parent link.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._lost = 0
        self._held = False
        self._connected = False

    @property
    def is_full(self) -> bool:
        """True while writers are to be held back, because the parent reads more slowly."""
        if self._connected and self._size > _HIGH:
            self._held = True
        return self._held

    @property
    def may_resume(self) -> bool:
        """True where writers were held back and need not be any more."""
        return self._held and (not self._connected or self._size < _LOW)

    def resume(self) -> None:
        """Note that writers go on."""
        self._held = False

    def put(self, stream: int, data: bytes) -> None:
        """Add output of stream 1 or 2."""
        with self._lock:
            for start in range(0, len(data), _PIECE):
                self._pieces.append((stream, data[start : start + _PIECE]))
            self._size += len(data)
            while not self._connected and self._size > _HIGH and len(self._pieces) > 1:
                _, dropped = self._pieces.popleft()
                self._size -= len(dropped)
                self._lost += len(dropped)
        self._wake()

    def set_connected(self, connected: bool) -> None:
        """Note whether there is a connection to the parent."""
        with self._lock:
            self._connected = connected

    def take(self) -> messages.Output | None:
        """Remove and return the next message to send; None where there is none."""
        with self._lock:
            if self._lost:
                lost, self._lost = self._lost, 0
                words = f"fiber: {lost} bytes of output are in the job's log alone\n"
                return messages.Output(2, words.encode())
            if not self._pieces:
                return None
            stream, data = self._pieces.popleft()
            self._size -= len(data)
            return messages.Output(stream, data)


class ForwardingSink(Sink):
    """A sink that writes to the job's own output and to the parent.

    Args:
        descriptor: 1 or 2.
        loop: event loop that watches the descriptor.
        descriptors: owner of descriptors that are opened here.
        on_room: called when writers that were held back may go on.
        forwarder: queue of output for the parent.
        prefix: text before each line that the parent gets.
    """

    def __init__(
        self,
        descriptor: int,
        loop: Loop,
        descriptors: Descriptors,
        on_room: Callable[[], None],
        forwarder: OutputForwarder,
        prefix: bytes,
    ) -> None:
        super().__init__(descriptor, loop, descriptors, on_room)
        self._stream = descriptor
        self._forwarder = forwarder
        self._prefix = LinePrefix(prefix)

    @property
    def is_full(self) -> bool:
        """True while writers are to be held back, for either reader."""
        return super().is_full or self._forwarder.is_full

    def write(self, data: bytes) -> None:
        """Queue bytes for the job's own output and for the parent."""
        if data:
            self._forwarder.put(self._stream, self._prefix.feed(data))
        super().write(data)


def open_sinks(
    loop: Loop,
    descriptors: Descriptors,
    on_room: Callable[[], None],
    forwarder: OutputForwarder | None,
    prefix: bytes,
) -> tuple[Sink, ...]:
    """Sinks of standard output and error; with a forwarder the parent gets their bytes too."""
    if forwarder is None:
        return tuple(Sink(number, loop, descriptors, on_room) for number in (1, 2))
    return tuple(
        ForwardingSink(number, loop, descriptors, on_room, forwarder, prefix) for number in (1, 2)
    )


#: pings without an answer after which no more are sent: a parent that is stopped reads none, and a
#: send that waits for room in its buffers would hold up everything else
_MAX_UNANSWERED = 8


@values.frozen
class Connected:
    """The parent was reached, for the first time or again."""


@values.frozen
class Lost:
    """The connection ended, or could not be made."""

    why: str


@values.frozen
class Refused:
    """The parent has refused this job; no other attempt is made."""

    why: str


@values.frozen
class Received:
    """A message from the parent."""

    message: object


@values.frozen
class Acknowledged:
    """The parent has acknowledged a message of :meth:`ParentLink.send_acknowledged`."""


ParentEvent = Connected | Lost | Refused | Received | Acknowledged


class ParentLink:
    """Messages to the parent and events from it; its methods are for the main thread.

    Args:
        urls: where the parent may listen, best first.
        connect: makes a link to one of them, or raises TransportError.
        on_event: called on the thread when there is an event to take; must not block.
        next_output: returns queued output or None; sent before messages that were queued after it.
        timing: durations of the run.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        connect: Callable[[str], Link],
        on_event: Callable[[], None],
        next_output: Callable[[], object | None] = lambda: None,
        *,
        timing: Timing = Timing(),
    ) -> None:
        self._timing = timing
        self._next_output = next_output
        self._urls = urls
        self._connect = connect
        self._on_event = on_event
        self._events: deque[ParentEvent] = deque()
        self._outgoing: deque[tuple[Kind, bytes]] = deque()
        self._closing = False
        self._unanswered = 0
        self._wake_reader, self._wake_writer = wake_pipe()
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._run, name="fiber-parent-link", daemon=True)

    def start(self) -> None:
        """Start the thread; no fork may follow."""
        self._thread.start()

    def take_events(self) -> list[ParentEvent]:
        """Remove and return the events since the last call."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def send(self, message: object) -> None:
        """Queue a message; it is dropped where there is no connection."""
        self._outgoing.append((Kind.CAST, encode(message)))
        self._wake()

    def send_acknowledged(self, message: object) -> None:
        """Queue a message whose arrival is reported by :class:`Acknowledged`."""
        self._outgoing.append((Kind.CALL, encode(message)))
        self._wake()

    def wake(self) -> None:
        """Wake the thread: there may be output to send."""
        self._wake()

    def close(self) -> None:
        """End the connection and the thread, which is left behind where it does not end."""
        self._closing = True
        self._wake()
        link = self._link
        if link is not None:
            # a send that blocks returns
            link.close()
        self._thread.join(self._timing.flush)

    # -- the thread

    def _run(self) -> None:
        while not self._closing:
            try:
                link = connect_to_any(self._urls, self._connect)
            except HandshakeError as error:
                self._emit(Refused(str(error)) if error.proven else Lost(str(error)))
                if error.proven:
                    return
                self._pause(self._timing.redial)
                continue
            except TransportError as error:
                self._emit(Lost(str(error)))
                self._pause(self._timing.redial)
                continue
            self._link = link
            # messages for the connection before are out of date
            self._outgoing.clear()
            self._unanswered = 0
            self._emit(Connected())
            try:
                self._serve(link)
            except (TransportError, WireError) as error:
                if not self._closing:
                    self._emit(Lost(str(error)))
            finally:
                self._link = None
                link.close()

    def _serve(self, link: Link) -> None:
        poll = select.poll()
        for fd in (*link.fds, self._wake_reader):
            poll.register(fd, select.POLLIN)
        beat = time.monotonic()
        while not self._closing:
            now = time.monotonic()
            if now >= beat:
                beat = now + self._timing.heartbeat
                if self._unanswered < _MAX_UNANSWERED:
                    self._unanswered += 1
                    link.send(Kind.CAST, 0, 0, [encode(messages.Ping())])
            self._send_output(link)
            while self._outgoing:
                kind, data = self._outgoing.popleft()
                self._send_output(link)
                link.send(kind, 0, 1, [data])
            self._receive(link)
            if not link.buffered:
                poll.poll(1000 * max(0.0, beat - time.monotonic()))
            drained(self._wake_reader)

    def _send_output(self, link: Link) -> None:
        while (message := self._next_output()) is not None:
            link.send(Kind.CAST, 0, 1, [encode(message)])

    def _receive(self, link: Link) -> None:
        while (message := link.receive(timeout=0)) is not None:
            self._unanswered = 0
            if message.kind is Kind.REPLY:
                self._emit(Acknowledged())
            elif message.kind is Kind.ERROR:
                self._emit(Refused("the parent does not know this job any more"))
            elif message.kind is Kind.CAST:
                decoder = Decoder()
                decoder.feed(bytes(message.body))
                for received in decoder.messages():
                    self._emit(Received(received))

    def _emit(self, event: ParentEvent) -> None:
        self._events.append(event)
        self._on_event()

    def _wake(self) -> None:
        wake(self._wake_writer)

    def _pause(self, seconds: float) -> None:
        """Wait, however often this thread is woken meanwhile, as after each event; not where it closes."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            poll.poll(1000 * left)
            drained(self._wake_reader)
