"""Multiplexing: connections over one stream, which may break and be replaced; pure, no sockets.

Both sides number the frames that they send, keep each until the other side has acknowledged it, and
send what is missing again on the next stream. So the frames arrive in order and once::

    frames = mux.send_data(channel, data)   to be written to the stream of the moment
    event = mux.receive(frame)              a frame of the stream
    frames = mux.resume(received)           on another stream: what was lost with the last one

A connection is a *channel*; the side that opens it chooses its number, the client odd ones and the
server even ones, and begins again with the lowest that is free once it has used up all. Bytes are sent as far as the other side has granted, so that a connection that
nobody reads holds up no other one, as in HTTP/2 (RFC 9113, section 5.2)::

    B  kind     see Kind
    I  channel  0 for the tunnel itself
       body     RESUME: session, 16 bytes; frames received so far, Q; 1 from a side that has
                        forgotten the session, B
                ACK: frames received so far, Q
                OPEN: route, text       DATA: bytes       RESET: reason, text
                CREDIT: bytes that may be sent in addition, I
                PROBE: any bytes; answered by PROBED where the channel is not 0

``RESUME``, ``ACK`` and ``PING`` belong to the stream, and are not numbered. Apart from ``tunnel``, which has the
sockets: so generated orders of frames can be tried.
"""

from __future__ import annotations

import enum
import struct
from collections import deque

from fiber._base import values
from fiber.exceptions import WireError

#: bytes of a channel that may be on their way in one direction
WINDOW = 4 * 2**20
#: most bytes in a frame
MAX_DATA = 64 * 2**10
#: frames and bytes received before the other side is told
_ACK_FRAMES = 128
_ACK_BYTES = 256 * 2**10
#: bytes of memory that a frame takes beside its body
_FRAME = 200
#: numbers of channels are less
_CHANNELS = 2**32
#: most characters of a reason, and bytes of a route
_MAX_TEXT = 1024

_HEAD = struct.Struct("<BI")
_RESUMPTION = struct.Struct("<16sQB")
_COUNT = struct.Struct("<Q")
_CREDIT = struct.Struct("<I")

#: a frame as it is written: its head, and its body apart, so that nothing large is copied
Frame = tuple[bytes, bytes]


class Kind(enum.IntEnum):
    """Kind of a frame."""

    RESUME = 1
    ACK = 2
    PING = 3
    OPEN = 4
    DATA = 5
    END = 6
    RESET = 7
    CREDIT = 8
    PROBE = 9
    PROBED = 10


_KINDS = {int(kind): kind for kind in Kind}
_UNNUMBERED = frozenset({Kind.RESUME, Kind.ACK, Kind.PING})
#: a sign of life
PING: Frame = (_HEAD.pack(Kind.PING, 0), b"")


@values.frozen
class Event:
    """A frame that its receiver is to act on."""

    kind: Kind
    channel: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body[:_MAX_TEXT].decode("ascii", "replace")


@values.frozen
class Resumption:
    """First frame of each side on a stream."""

    #: chosen by the client for as long as both sides remember their connections
    session: bytes
    #: frames received in it
    received: int
    #: True where this side knew no such session
    is_new: bool = False

    def frame(self) -> Frame:
        """The frame."""
        body = _RESUMPTION.pack(self.session, self.received, self.is_new)
        return _HEAD.pack(Kind.RESUME, 0), body

    @classmethod
    def parse(cls, body: bytes) -> Resumption:
        """Parse its body; raises WireError where it has another length."""
        if len(body) != _RESUMPTION.size:
            msg = f"a resumption of {len(body)} bytes in a tunnel"
            raise WireError(msg)
        session, received, is_new = _RESUMPTION.unpack(body)
        return cls(session, received, bool(is_new))


class _Channel:
    """State of one connection."""

    __slots__ = ("credit", "ended", "finished", "granted")

    def __init__(self) -> None:
        # bytes that may be sent, and that the other side may send
        self.credit = self.granted = WINDOW
        # True once the other side has sent its last byte, and once this one has
        self.ended = self.finished = False


class Mux:
    """One side's state of all connections of a tunnel.

    Args:
        is_client: True for the side that opens streams.
    """

    def __init__(self, *, is_client: bool) -> None:
        #: numbered frames received
        self.received = 0
        #: bytes of memory that frames take which were not acknowledged
        self.kept = 0
        self._channels: dict[int, _Channel] = {}
        self._first_channel = self._next_channel = 1 if is_client else 2
        self._last_of_theirs = 0
        # True once all numbers have been used, by this side and by the other one
        self._is_wrapped = self._is_theirs_wrapped = False
        # frames that were not acknowledged, and their numbers
        self._kept: deque[Frame] = deque()
        self._first = self._next = 0
        self._unacknowledged_frames = self._unacknowledged_bytes = 0

    # -- to send

    def open(self, route: str) -> tuple[int, list[Frame]]:
        """Open a channel to a route; bytes may follow at once."""
        channel = self._next_channel
        while channel in self._channels or channel >= _CHANNELS:
            # after two thousand million connections those that are left over are few
            self._is_wrapped = self._is_wrapped or channel >= _CHANNELS
            channel = self._first_channel if channel >= _CHANNELS else channel + 2
        self._next_channel = channel + 2
        self._channels[channel] = _Channel()
        return channel, self._keep(Kind.OPEN, channel, route.encode())

    def room(self, channel: int) -> int:
        """Bytes that a channel may send now."""
        found = self._channels.get(channel)
        return 0 if found is None or found.finished else found.credit

    def send_data(self, channel: int, data: bytes) -> list[Frame]:
        """Send bytes of a channel, at most :meth:`room` and :data:`MAX_DATA`."""
        self._channels[channel].credit -= len(data)
        return self._keep(Kind.DATA, channel, data)

    def finish(self, channel: int) -> list[Frame]:
        """Send the end of a channel's bytes."""
        self._channels[channel].finished = True
        return self._keep(Kind.END, channel)

    def reset(self, channel: int, why: str = "") -> list[Frame]:
        """Give up a channel; nothing where it is over."""
        if self._channels.pop(channel, None) is None:
            return []
        return self._keep(Kind.RESET, channel, why.encode("ascii", "replace")[:_MAX_TEXT])

    def grant(self, channel: int, count: int) -> list[Frame]:
        """Let the other side send more; nothing where it has no more to send."""
        found = self._channels.get(channel)
        if found is None or found.ended:
            return []
        found.granted += count
        return self._keep(Kind.CREDIT, channel, _CREDIT.pack(count))

    def probe(self, token: int, data: bytes) -> list[Frame]:
        """Send bytes that carry nothing; answered where the token is not 0."""
        return self._keep(Kind.PROBE, token, data)

    def answer_probe(self, token: int) -> list[Frame]:
        """Answer a probe."""
        return self._keep(Kind.PROBED, token)

    def forget(self, channel: int) -> None:
        """Forget a channel that both sides have ended, or one has given up."""
        self._channels.pop(channel, None)

    # -- on a stream

    def acknowledgement(self, *, now: bool = False) -> list[Frame]:
        """Tell what has arrived, where it is enough, or where there is something and it is time."""
        enough = (
            self._unacknowledged_frames >= (1 if now else _ACK_FRAMES)
            or self._unacknowledged_bytes >= _ACK_BYTES
        )
        if not enough:
            return []
        self._unacknowledged_frames = self._unacknowledged_bytes = 0
        return [(_HEAD.pack(Kind.ACK, 0), _COUNT.pack(self.received))]

    def resume(self, received: int) -> list[Frame]:
        """Go on over another stream.

        Args:
            received: frames that the other side has.

        Raises:
            WireError: it cannot have so many.
        """
        self._forget(received)
        self._unacknowledged_frames = self._unacknowledged_bytes = 0
        return list(self._kept)

    def receive(self, frame: bytes | memoryview) -> Event | None:
        """Take a frame; an event where there is something to do.

        Raises:
            WireError: it makes no sense.
        """
        if len(frame) < _HEAD.size:
            msg = f"a frame of {len(frame)} bytes in a tunnel"
            raise WireError(msg)
        number, channel = _HEAD.unpack_from(frame)
        kind = _KINDS.get(number)
        body = bytes(memoryview(frame)[_HEAD.size :])
        if kind is None or len(body) > MAX_DATA:
            msg = f"a frame of kind {number} with {len(body)} bytes in a tunnel"
            raise WireError(msg)
        if kind is Kind.ACK:
            (count,) = _unpack(_COUNT, body)
            self._forget(count)
            return None
        if kind in _UNNUMBERED:
            return Event(kind, channel, body) if kind is Kind.RESUME else None
        self.received += 1
        self._unacknowledged_frames += 1
        self._unacknowledged_bytes += len(body)
        if kind is Kind.PROBE or kind is Kind.PROBED:
            return Event(kind, channel, body)
        return self._of_channel(kind, channel, body)

    def _of_channel(self, kind: Kind, channel: int, body: bytes) -> Event | None:
        if kind is Kind.OPEN:
            is_theirs = channel and (channel - self._next_channel) % 2
            has_wrapped = self._last_of_theirs - channel > _CHANNELS // 2
            self._is_theirs_wrapped |= has_wrapped
            is_new = channel > self._last_of_theirs or has_wrapped
            if not is_theirs or not is_new or channel in self._channels:
                msg = f"channel {channel} of a tunnel is opened, which is not theirs to open"
                raise WireError(msg)
            self._last_of_theirs = channel
            self._channels[channel] = _Channel()
            return Event(kind, channel, body)
        found = self._channels.get(channel)
        if found is None:
            is_mine = (channel - self._next_channel) % 2 == 0
            last = self._next_channel - 2 if is_mine else self._last_of_theirs
            is_any = self._is_wrapped if is_mine else self._is_theirs_wrapped
            if not channel or (channel > last and not is_any):
                msg = f"{kind.name} for channel {channel} of a tunnel, which was never opened"
                raise WireError(msg)
            # given up here, while it was on its way
            return None
        if kind is Kind.CREDIT:
            found.credit += _unpack(_CREDIT, body)[0]
        elif kind is Kind.RESET:
            del self._channels[channel]
        elif found.ended:
            msg = f"{kind.name} behind the end of channel {channel} of a tunnel"
            raise WireError(msg)
        elif kind is Kind.END:
            found.ended = True
        else:
            found.granted -= len(body)
            if found.granted < 0 or not body:
                msg = f"{len(body)} bytes in channel {channel} of a tunnel, of which none were granted"
                raise WireError(msg)
        return Event(kind, channel, body)

    def _keep(self, kind: Kind, channel: int, body: bytes = b"") -> list[Frame]:
        frame = _HEAD.pack(kind, channel), body
        self._kept.append(frame)
        self.kept += _FRAME + len(body)
        self._next += 1
        return [frame]

    def _forget(self, received: int) -> None:
        if not self._first <= received <= self._next:
            msg = f"{received} frames of a tunnel have arrived, of {self._first} to {self._next}"
            raise WireError(msg)
        while self._first < received:
            self.kept -= _FRAME + len(self._kept.popleft()[1])
            self._first += 1


def _unpack(layout: struct.Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != layout.size:
        msg = f"{len(body)} bytes in a frame of a tunnel, where {layout.size} were expected"
        raise WireError(msg)
    return layout.unpack(body)
