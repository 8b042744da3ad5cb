"""The tunnel of one job: its connections, over its stream of the moment.

A :class:`TunnelStream` begins with the handshake of :mod:`fiber._wire.handshake`; the side that opened the stream
dials. Its context is the job for which the stream was opened, so that whoever passes the handshake on to another
job is found out. Every frame that follows has a code that only the stream's ends can make::

    I    length of what follows
         frame
    32s  HMAC(key of the direction, number of the frame on this stream, frame)

with keys that are derived from the handshake. So nobody in between can change, add, repeat or
reorder anything. That nothing is cut off at the end is the affair of :mod:`fiber._tunnel.mux`.
What a frame carries is encrypted, if at all, by the processes at its ends.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator

from fiber._base.sockets import Buffered
from fiber._base.threads import Reactor
from fiber._tunnel.mux import MAX_DATA, PING, WINDOW, Event, Frame, Kind, Mux, Resumption
from fiber._wire import frames
from fiber._wire.handshake import Credentials, DialerHandshake, Hello, ListenerHandshake
from fiber.exceptions import HandshakeError, WireError
from fiber.model.timing import Timing

#: version of the tunnel's frames; both ends are of one release of fiber-core
_CONTEXT = b" tunnel 3 into "
_CODE = 32
_NUMBER = struct.Struct("<Q")
_JOIN_BELOW = 4 * 2**10
#: bytes that the system takes beyond those that are on their way
_UNSENT = 128 * 2**10
_TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
#: bytes of the largest frame, its head and code included
_MAX_RECORD = MAX_DATA + 256


def dialer_handshake(credentials: Credentials, hello: Hello, job: str) -> DialerHandshake:
    """Handshake of the side that opened a stream into a job."""
    return DialerHandshake(credentials, hello, context=_CONTEXT + job.encode())


def listener_handshake(credentials: Credentials, hello: Hello, job: str) -> ListenerHandshake:
    """Handshake of a job into which a stream was opened."""
    return ListenerHandshake(credentials, hello, context=_CONTEXT + job.encode())


class _Codes:
    """Codes of the frames of one direction, one after another."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def next(self, *parts: bytes | memoryview) -> bytes:
        made = self._keyed.copy()
        made.update(_NUMBER.pack(self._count))
        self._count += 1
        for part in parts:
            made.update(part)
        return made.digest()


class Records:
    """Frames as they travel on a stream.

    Args:
        sent: key of what this side sends.
        received: key of what the other one sends.
    """

    def __init__(self, sent: bytes, received: bytes) -> None:
        self._sent = _Codes(sent)
        self._received = _Codes(received)
        self._deframer = frames.Deframer(_MAX_RECORD)

    def protect(self, sent: Iterable[Frame]) -> list[bytes]:
        """Bytes to write for frames."""
        found: list[bytes] = []
        for head, body in sent:
            length = frames.LENGTH.pack(len(head) + len(body) + _CODE)
            record = length + head, body, self._sent.next(head, body)
            # copying what is small costs less than gathering it
            found += record if len(body) > _JOIN_BELOW else (b"".join(record),)
        return found

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Yield the frames that are complete with ``data``.

        Raises:
            WireError: it is not what the other side has sent.
        """
        for record in self._deframer.split(data):
            frame = memoryview(record)[:-_CODE]
            code = self._received.next(frame)
            if not hmac.compare_digest(code, bytes(record[-_CODE:])):
                msg = "a frame in a tunnel is not of the process that proved itself"
                raise WireError(msg)
            yield frame


class TunnelStream:
    """One stream; for the reactor's thread, and so are the callbacks.

    Args:
        reactor: that waits for it.
        sock: the stream; owned from now on.
        handshake: of this side.
        on_proven: called once the other side has proved that it is of the run and job.
        on_end: called once with the reason when it ends, unless it was closed here.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        handshake: DialerHandshake | ListenerHandshake,
        *,
        on_proven: Callable[[TunnelStream], None],
        on_end: Callable[[TunnelStream, str], None],
    ) -> None:
        #: called with each frame that follows the handshake
        self.on_frame: Callable[[memoryview], None] = lambda _: None
        self.on_end = on_end
        #: called when some of what waits to be written was taken
        self.on_room: Callable[[], None] = lambda: None
        #: time of the last byte from the other side, and of the last frame to it
        self.heard = self.spoke = self.began = time.monotonic()
        #: True once a byte has come, and once the other side has said of which run it is
        self.has_spoken = self.has_greeted = False
        self._on_proven = on_proven
        self._handshake = handshake
        self._deframer = frames.Deframer(frames.MAX_UNPROVEN)
        self._records: Records | None = None
        self._closed = False
        if sock.family != socket.AF_UNIX:
            # a small frame must not wait until the other side has acknowledged the one before
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _TCP_NOTSENT_LOWAT is not None:
                # what the system holds back is in front of every message that comes later
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT)
        self._buffered = Buffered(
            reactor,
            sock,
            on_data=self._arrived,
            on_end=self._ended,
            on_room=self._has_room,
        )
        if isinstance(handshake, DialerHandshake):
            self._say(*handshake.hello())

    @property
    def waiting(self) -> int:
        """Bytes that were not taken yet."""
        return self._buffered.waiting

    def write(self, sent: Iterable[Frame]) -> None:
        """Send frames, once the other side has proved itself."""
        assert self._records is not None
        self.spoke = time.monotonic()
        self._buffered.write(self._records.protect(sent))

    def close(self) -> None:
        """Close it; nothing is called any more. Idempotent."""
        self._closed = True
        self._buffered.close()

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptor."""
        self._closed = True
        self._buffered.abandon()

    def _arrived(self, data: bytes) -> None:
        self.heard = time.monotonic()
        self.has_spoken = True
        try:
            if self._records is None:
                for frame in self._deframer.split(data):
                    self._greeted(frames.parse(frame))
                return
            for found in self._records.feed(data):
                if self._closed:
                    return
                self.on_frame(found)
        except (WireError, HandshakeError) as error:
            self._failed(str(error))
        except BaseException as error:
            # the rest of the data is lost with it; on another stream it comes again
            self._failed(str(error))
            raise

    def _greeted(self, frame: frames.Frame) -> None:
        if self._records is not None:
            # nothing follows before the other side has had an answer
            msg = "a frame in a tunnel that nobody has asked for"
            raise WireError(msg)
        answer = self._handshake.receive(frame)
        self.has_greeted = True
        if answer is not None:
            self._say(*answer)
        if self._handshake.peer is not None:
            keys = [self._handshake.derive(label) for label in (b"to listener", b"to dialer")]
            if isinstance(self._handshake, ListenerHandshake):
                keys.reverse()
            self._records = Records(*keys)
            self._on_proven(self)

    def _say(self, kind: frames.Kind, body: bytes) -> None:
        head = frames.header(kind, size=len(body))
        self._buffered.write([b"".join(frames.stream_buffers(head, [body])[0])])

    def _has_room(self) -> None:
        self.on_room()

    def _ended(self, error: OSError | None) -> None:
        self._failed("it ended" if error is None else str(error))

    def _failed(self, why: str) -> None:
        if not self._closed:
            self.close()
            self.on_end(self, why)


#: bytes that wait for the stream, from which on connections are read in turn: what one has to send
#: waits behind that of all others
_CONGESTED = 256 * 2**10
#: bytes that are read of a connection without a turn, so that a small message is not behind large
#: ones; one that has as many has more to send
_SMALL = 8 * 2**10
#: bytes that were not acknowledged, from which on no connection is read: they are kept in memory
_FULL = 32 * 2**20
#: bytes taken by a connection before the other side is granted as many again
_GRANT = WINDOW // 4


class _Connection:
    """A connection of this host, and its channel."""

    __slots__ = ("channel", "ended", "finished", "received", "since", "socket", "taken")

    def __init__(self, channel: int, now: float) -> None:
        self.channel = channel
        #: when it began
        self.since = now
        self.socket: Buffered
        #: bytes of the channel, and those for which the other side was granted others
        self.received = self.taken = 0
        #: True once all of the channel's bytes have come, and once all of the socket's have
        self.ended = self.finished = False


class Tunnel:
    """One side of the tunnel of one job; for the reactor's thread.

    Args:
        reactor: that waits for the sockets.
        is_client: True for the side that opens streams.
        accept: makes the connection to the route of the other side's; a reason where there is none.
        on_broken: called when the stream broke.
        on_idle: called when the last connection is over.
        patience: seconds that a connection may be without a stream.
        timing: durations of the run.
        clock: seconds.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        is_client: bool,
        accept: Callable[[str], socket.socket | str],
        on_broken: Callable[[str], None] = lambda _: None,
        on_idle: Callable[[], None] = lambda: None,
        patience: float,
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reactor = reactor
        self._is_client = is_client
        self._accept = accept
        self._on_broken = on_broken
        self._on_idle = on_idle
        self._patience = patience
        self._timing = timing
        self._clock = clock
        self._stream: TunnelStream | None = None
        # the stream has carried both sides' resumption; and a stream has, in this session
        self._is_open = self._is_shared = False
        self._since = clock()
        self._connections: dict[int, _Connection] = {}
        self._mux: Mux
        self._session = b""
        self._renew()
        # no connection is read
        self._full = False
        # connections with much to send, the one first that was not read for longest; and those of
        # them whose turn comes later
        self._bulk: dict[_Connection, None] = {}
        self._turns: dict[_Connection, None] = {}
        self._probe: Callable[[], None] = lambda: None

    @property
    def is_idle(self) -> bool:
        """True while there is no connection."""
        return not self._connections

    def attach(self, stream: TunnelStream) -> None:
        """Go on over a stream whose other side has proved itself; owned from now on."""
        if self._stream is not None:
            self._stream.close()
        self._stream = stream
        self._is_open = False
        stream.on_frame = self._receive
        stream.on_end = lambda _, why: self._broken(why)
        stream.on_room = self._regulate
        if self._is_client:
            stream.write([Resumption(self._session, self._mux.received).frame()])

    def open(self, route: str, local: socket.socket) -> None:
        """Carry a connection of this host to a route of the other side; the socket is owned."""
        channel, frames = self._mux.open(route)
        self._send(frames)
        self._join(channel, local)

    def probe(self, size: int, tell: Callable[[tuple[float, float]], None]) -> None:
        """Measure the stream: seconds there and back, and bytes in a second; nothing if it breaks."""
        times: list[float] = []

        def step() -> None:
            times.append(self._clock())
            if len(times) == 1:
                self._send(self._mux.probe(1, b"\0"))
            elif len(times) == 2:
                for _ in range(size // MAX_DATA):
                    self._send(self._mux.probe(0, bytes(MAX_DATA)))
                self._send(self._mux.probe(1, b"\0"))
            else:
                self._probe = lambda: None
                there_and_back = times[1] - times[0]
                took = max(times[2] - times[1] - there_and_back, 1e-4)
                tell((there_and_back, size / took))

        self._probe = step
        if self._is_open:
            step()

    def look(self) -> None:
        """Once in a while: give signs of life, notice a silent stream, give up what has waited too long."""
        now = self._clock()
        stream = self._stream
        if stream is None:
            for one in list(self._connections.values()):
                if now - max(one.since, self._since) > self._patience:
                    self._reset(one, "there was no stream for too long")
            return
        if now - stream.heard > self._timing.stream_silence:
            stream.close()
            self._broken(f"nothing was heard for {self._timing.stream_silence:g} s")
        elif self._is_open:
            found = self._mux.acknowledgement(now=True)
            if not found and now - stream.spoke >= self._timing.stream_heartbeat:
                # behind bytes that wait for room it would be no sign of anything
                found = [] if stream.waiting else [PING]
            if found:
                stream.write(found)

    def end_if_broken(self) -> None:
        """Give up all connections where there is no stream for them: no other one will come."""
        if self._stream is None:
            for one in list(self._connections.values()):
                self._mux.reset(one.channel)
                self._leave(one)

    def close(self) -> None:
        """Give up everything."""
        for one in list(self._connections.values()):
            self._reset(one, "the process at the other end of the tunnel ends")
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptors."""
        for one in self._connections.values():
            one.socket.abandon()
        if self._stream is not None:
            self._stream.abandon()

    # -- the stream

    def _renew(self) -> None:
        self._mux = Mux(is_client=self._is_client)
        self._is_shared = False
        # the server takes the client's
        self._session = secrets.token_bytes(16) if self._is_client else b""

    def _send(self, frames: list[Frame]) -> None:
        # what is not sent now is sent when a stream is resumed
        if frames and self._is_open and self._stream is not None:
            self._stream.write(frames)

    def _broken(self, why: str) -> None:
        self._stream = None
        self._is_open = False
        self._since = self._clock()
        self._probe = lambda: None
        self._regulate()
        self._on_broken(why)

    def _receive(self, frame: memoryview) -> None:
        try:
            event = self._mux.receive(frame)
            if event is not None:
                self._act(event)
            elif self._full:
                # the other side may have acknowledged what is kept
                self._regulate()
        except WireError:
            # it would come again on the next stream
            self._drop_all()
            self._renew()
            raise
        stream = self._stream
        if stream is not None and self._is_open:
            found = self._mux.acknowledgement()
            if found:
                stream.write(found)

    def _resume(self, theirs: Resumption) -> None:
        stream = self._stream
        if stream is None or self._is_open:
            msg = "a tunnel is resumed in the middle of a stream"
            raise WireError(msg)
        if self._is_client:
            if theirs.session != self._session:
                msg = "another session of a tunnel is resumed than was asked for"
                raise WireError(msg)
            if theirs.is_new and self._is_shared:
                # it has forgotten the connections, and goes on in the session from its beginning
                self._drop_all()
                self._mux = Mux(is_client=True)
            frames = self._mux.resume(theirs.received)
        else:
            is_new = theirs.session != self._session
            if is_new and self._is_shared:
                # the client gave up the former one, and knows none of its connections
                self._drop_all()
                self._renew()
            self._session = theirs.session
            frames = self._mux.resume(0 if is_new else theirs.received)
            stream.write([Resumption(self._session, self._mux.received, is_new).frame()])
        self._is_open = self._is_shared = True
        self._send(frames)
        self._regulate()
        self._probe()

    # -- connections

    def _act(self, event: Event) -> None:
        if event.kind is Kind.RESUME:
            self._resume(Resumption.parse(event.body))
            return
        if not self._is_open:
            msg = f"a tunnel begins with {event.kind.name}"
            raise WireError(msg)
        if event.kind is Kind.OPEN:
            self._opened(event.channel, event.text)
            return
        if event.kind is Kind.PROBE:
            self._send(self._mux.answer_probe(event.channel) if event.channel else [])
            return
        if event.kind is Kind.PROBED:
            self._probe()
            return
        one = self._connections.get(event.channel)
        if one is None:
            return
        if event.kind is Kind.RESET:
            self._leave(one)
        elif event.kind is Kind.CREDIT:
            self._regulate_one(one)
        elif event.kind is Kind.END:
            one.ended = True
            one.socket.finish()
            self._check(one)
        else:
            one.received += len(event.body)
            # may find the connection broken, and forget it
            one.socket.write([event.body])

    def _opened(self, channel: int, route: str) -> None:
        try:
            found = self._accept(route)
        except OSError as error:
            # there is no descriptor for it
            found = f"{route} is not reached: {error}"
        if isinstance(found, str):
            self._send(self._mux.reset(channel, found))
        else:
            self._join(channel, found)

    def _join(self, channel: int, local: socket.socket) -> None:
        one = _Connection(channel, self._clock())
        self._connections[channel] = one
        one.socket = Buffered(
            self._reactor,
            local,
            on_data=lambda data: self._from_local(one, data),
            on_end=lambda error: self._local_ended(one, error),
            on_room=lambda: self._took(one),
        )
        self._regulate_one(one)

    def _from_local(self, one: _Connection, data: bytes) -> None:
        self._send(self._mux.send_data(one.channel, data))
        self._bulk.pop(one, None)
        if len(data) >= _SMALL:
            # the last to have had its turn
            self._bulk[one] = None
        self._regulate()
        self._regulate_one(one)

    def _local_ended(self, one: _Connection, error: OSError | None) -> None:
        if error is not None:
            self._reset(one, f"the connection broke: {error}")
            return
        one.finished = True
        self._send(self._mux.finish(one.channel))
        self._check(one)

    def _took(self, one: _Connection) -> None:
        """A connection took some of its bytes."""
        taken = one.received - one.socket.waiting
        if taken - one.taken >= _GRANT:
            self._send(self._mux.grant(one.channel, taken - one.taken))
            one.taken = taken
        self._check(one)

    def _regulate(self) -> None:
        """Read connections no faster than the stream takes their bytes, and the other side has them.

        While the stream is congested, those with much to send are read in turn, no more of them at
        once than fill it.
        """
        full = self._mux.kept >= _FULL
        if full is not self._full:
            self._full = full
            for one in list(self._connections.values()):
                self._regulate_one(one)
        room = _CONGESTED - (0 if self._stream is None else self._stream.waiting)
        before = self._turns
        if room <= 0:
            self._turns = dict(self._bulk)
        elif before:
            self._turns = dict.fromkeys([*before][-(-room // MAX_DATA) :])
            if self._turns:
                # those before them may have nothing to send now
                self._reactor.call_soon(self._regulate)
        for one in before.keys() ^ self._turns.keys():
            self._regulate_one(one)

    def _regulate_one(self, one: _Connection) -> None:
        room = self._mux.room(one.channel)
        one.socket.read_size = min(room, MAX_DATA if one in self._bulk else _SMALL)
        one.socket.read(bool(room) and not self._full and one not in self._turns)

    def _check(self, one: _Connection) -> None:
        # it may have broken meanwhile, and be forgotten
        is_here = self._connections.get(one.channel) is one
        if is_here and one.ended and one.finished and not one.socket.waiting:
            self._mux.forget(one.channel)
            self._forget(one)

    def _reset(self, one: _Connection, why: str) -> None:
        self._send(self._mux.reset(one.channel, why))
        self._forget(one)

    def _leave(self, one: _Connection) -> None:
        """A channel is given up: its connection takes what has come, and ends."""
        one.ended = one.finished = True
        self._regulate_one(one)
        one.socket.finish()
        self._check(one)

    def _drop_all(self) -> None:
        for one in list(self._connections.values()):
            self._mux.reset(one.channel)
            self._forget(one)

    def _forget(self, one: _Connection) -> None:
        if self._connections.pop(one.channel, None) is None:
            return
        self._bulk.pop(one, None)
        self._turns.pop(one, None)
        one.socket.close()
        if self.is_idle:
            self._on_idle()
