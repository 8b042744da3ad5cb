"""What peers of the run's own protocol say: frames, handshakes, bodies, tunnels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from fiber._objects import protocol as objects
from fiber._objects.memory.backing import Location
from fiber._objects.queue import messages
from fiber._tasks import protocol as tasks
from fiber._tunnel import routes
from fiber._tunnel.mux import MAX_DATA, Kind, Mux, Resumption
from fiber._tunnel.tunnel import Records
from fiber._wire import frames as layout
from fiber._wire.handshake import Credentials, DialerHandshake, Hello, ListenerHandshake
from fiber.exceptions import HandshakeError, WireError
from fuzz.target import target

_RUN = Credentials(run_id="0123abcd", key=bytes(32))
_OF_AUTHKEY = Credentials.of_authkey(b"guessable")
_HELLO = Hello.mine("fuzz")
#: bytes that come at once, so that frames are cut
_PIECE = 97


def _received(data: bytes) -> Iterator[layout.Buffer]:
    """Yield the frames of a stream as a socket's reader gets them."""
    deframer = layout.Deframer(layout.MAX_UNPROVEN)
    for start in range(0, len(data), _PIECE):
        yield from deframer.split(data[start : start + _PIECE])


@target(WireError)
def frames(data: bytes) -> None:
    """A stream of frames: messages no larger than what came, or WireError."""
    assembler = layout.Assembler()
    for frame in _received(data):
        parsed = layout.parse(frame)
        is_cast = parsed.is_whole and parsed.kind is layout.Kind.CAST
        assert (layout.cast(frame, parsed.target) is not None) == is_cast
        message = assembler.feed(parsed)
        assert message is None or len(message.body) <= len(data)


@target(WireError, HandshakeError)
def handshake(data: bytes) -> None:
    """A handshake one of whose frames is a stranger's: nobody is proven by it.

    The first byte is the number of the frame, and 8 more where the key comes of an authkey; the
    stranger has seen no other frame.
    """
    forged, frame = data[0] % 8 if data else 0, data[1:]
    run = _OF_AUTHKEY if data[:1] >= b"\x08" else _RUN
    dialer, listener = DialerHandshake(run, _HELLO), ListenerHandshake(run, _HELLO)
    said: Any = dialer.hello()
    for number in range(8):
        if said is None:
            break
        kind, body = said
        is_forged = forged == number
        got = layout.parse(frame if is_forged else layout.header(kind, size=len(body)) + body)
        side = dialer if number % 2 else listener
        said = side.receive(got)
        assert not (is_forged and number < 3 and side.peer), "a stranger is taken for a peer"


def _items(body: memoryview) -> None:
    one, items = messages.sole(body, 0), messages.unpack(body)
    assert one is None or items == [one]


#: readers of bodies by the first byte of an input
_BODIES: tuple[Callable[[memoryview], object], ...] = (
    layout.unpack,
    _items,
    lambda body: messages.ItemWithReferences(body).references(),
    tasks.read_tasks,
    tasks.read_done,
    tasks.read_kept,
    tasks.read_function,
    tasks.read_entry,
    tasks.read_ask,
    Location.unpack,
    lambda body: objects.read(objects.REQUEST, body),
    lambda body: list(tasks.split(body)),
)


@target(WireError)
def bodies(data: bytes) -> None:
    """A message's body of each kind, of which nothing is unpickled: its parts, or WireError."""
    if data:
        _BODIES[data[0] % len(_BODIES)](memoryview(data)[1:])


@target()
def tunnel_routes(data: bytes) -> None:
    """Text that a process of the job asks for, or opens a channel to: a route, or None."""
    routes.parse(data.decode("ascii", "replace"))


@target(WireError)
def tunnel_frames(data: bytes) -> None:
    """Frames of one that has proved itself, one a line: events, or WireError.

    The same bytes as records of somebody without the key: WireError before one of them is taken.
    """
    ours, theirs = Records(b"o", b"t"), Records(b"t", b"o")
    with contextlib.suppress(WireError):
        assert not list(Records(b"o", b"t").feed(data)), "a stranger's record is taken"
    mux = Mux(is_client=False)
    mux.open("tunnel+tcp://j@127.0.0.1:1")
    for line in data.split(b"\n"):
        for record in theirs.protect([(b"", line[:MAX_DATA])]):
            for frame in ours.feed(record):
                event = mux.receive(frame)
                if event is not None and event.kind is Kind.RESUME:
                    mux.resume(Resumption.parse(event.body).received)
                assert mux.room(2) >= 0
