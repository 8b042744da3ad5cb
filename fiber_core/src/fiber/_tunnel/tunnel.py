"""The tunnel of one job: its connections, over its stream of the moment."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable

from fiber._base.sockets import Buffered
from fiber._base.threads import Reactor
from fiber._tunnel.mux import MAX_DATA, PING, WINDOW, Event, Frame, Kind, Mux, Resumption
from fiber._tunnel.stream import TunnelStream
from fiber.exceptions import WireError
from fiber.model.timing import Timing

__all__ = ["Tunnel"]

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
