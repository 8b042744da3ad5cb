"""Dialing side: one connection to another process's endpoint, with the handshake done."""

from __future__ import annotations

import functools
import select
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from fiber._base.threads import Reactor
from fiber._wire import descriptors, frames
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Credentials, DialerHandshake, Hello
from fiber._wire.reading import Reading
from fiber.exceptions import HandshakeError, PeerLostError, TransportError
from fiber.model.timing import Timing

#: unacknowledged frames after which a frame is sent for the acknowledgement alone
ACK_AFTER = frames.WINDOW // 2


class _DialerSocket(Protocol):
    """Dialing socket of one transport: ``unix.UnixDialer`` or ``nng.NngDialer``."""

    survives_exit: bool

    @property
    def fds(self) -> tuple[int, ...]: ...
    @property
    def descriptors(self) -> descriptors.Owned: ...
    @property
    def end_fd(self) -> int: ...
    @property
    def arrived(self) -> Collection[object]: ...
    @property
    def lost(self) -> bool: ...
    def reading(self, reactor: Reactor, read: Callable[[], None]) -> Reading | None: ...
    def on_descriptors_lost(self, action: Callable[[], None]) -> None: ...
    def dial(self, url: str, credentials: Credentials, *, timeout: float) -> Credentials: ...
    @property
    def can_wait(self) -> bool: ...
    @property
    def is_drained(self) -> bool: ...
    @property
    def acknowledges(self) -> bool: ...
    def receive(self, waits: bool = False) -> tuple[int, bytearray] | None: ...
    def send(self, head: Callable[[], bytes], pieces: Sequence[frames.Buffer] = ()) -> None: ...
    def post(self, head: Callable[[], bytes]) -> None: ...
    def close(self) -> None: ...


def socket_for(url: str, max_frame: int, timing: Timing) -> _DialerSocket:
    """Make the dialing socket for a URL, not yet connected."""
    # imported on use: a process that only talks on its own host never loads nng
    if url.startswith("unix:"):
        from fiber._wire.unix import UnixDialer

        return UnixDialer(max_frame=max_frame)
    from fiber._wire.nng import NngDialer

    return NngDialer(max_frame=max_frame, check_interval=timing.nng_check, redial=timing.redial)


class Link:
    """A proven connection; one thread calls :meth:`receive`, any thread :meth:`send`.

    Args:
        timing: durations of the run, whose ``handshake`` is for connecting and for the handshake.

    Raises:
        TransportError: no process listens at the URL.
        HandshakeError: the listener is of another run, refused us, or did not answer in time.
    """

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        hello: Hello,
        *,
        max_frame: int = frames.MAX_FRAME,
        timing: Timing = Timing(),
    ) -> None:
        self.url = url
        self._max_frame = max_frame
        self._room = max_frame - frames.HEADER.size
        #: frames that have come, where they are counted
        self.received = 0
        #: True where :meth:`receive` has another message, for which no descriptor is readable
        self.buffered = False
        self._large_message = threading.Lock()
        self._assembler = frames.Assembler()
        self._socket = socket_for(url, max_frame, timing)
        #: True where the other side waits for acknowledgements
        self.acknowledges = self._socket.acknowledges
        #: of the frames that have come those that were acknowledged
        self.acked = 0
        self._owned = self._socket.descriptors
        #: descriptors of which one is readable whenever :meth:`receive` may have a message
        self.fds = self._socket.fds
        self._poll = select.poll()
        for fd in self.fds:
            self._poll.register(fd, select.POLLIN)
        try:
            credentials = self._socket.dial(url, credentials, timeout=timing.handshake)
            #: the process at the other end
            self.peer: Hello = self._handshake(credentials, hello, timing.handshake)
        except BaseException:
            self.close()
            raise

    @property
    def is_drained(self) -> bool:
        """True where the last :meth:`receive` is known to have taken all that had come."""
        return self._socket.is_drained

    @property
    def survives_exit(self) -> bool:
        """True where what was sent still arrives if this process ends at once (Unix sockets)."""
        return self._socket.survives_exit

    @property
    def end_fd(self) -> int:
        """Descriptor that is readable once the other side is gone."""
        return self._socket.end_fd

    @property
    def lost(self) -> bool:
        """True once the other side is gone, or this one closed."""
        return self._socket.lost

    @property
    def is_intact(self) -> bool:
        """False once user code has closed or replaced one of its descriptors."""
        return self._owned.are_intact

    def reading(self, reactor: Reactor, read: Callable[[], None]) -> Reading | None:
        """Have ``read`` called on a reactor, and threads that wait read themselves; None where they cannot."""
        return self._socket.reading(reactor, read)

    def on_descriptors_lost(self, action: Callable[[], None]) -> None:
        """Call ``action`` when a thread of the transport notices that the link is not intact.

        Over nng one checks now and then. On a Unix socket there is none: the next use of the link
        fails, and the process at the other end sees the connection end at once.
        """
        self._socket.on_descriptors_lost(action)

    def send(
        self,
        kind: Kind,
        target: int = 0,
        number: int = 0,
        segments: Sequence[frames.Buffer] = (),
        size: int | None = None,
        *,
        checks: bool = False,
    ) -> None:
        """Send a message of any size; blocks while the listener does not read.

        Args:
            kind: as of :class:`~fiber._wire.frames.Message`, as are the next two.
            target: see there.
            number: see there.
            segments: the body.
            size: for one of the frames of a large message, as ``frames.split`` makes them.
            checks: True to send nothing into a file whose descriptor user code has put in place of ours.

        Raises:
            PeerLostError: the other side is gone, or the link is not intact.
        """
        if checks and not self._owned.are_intact:
            raise _descriptors_lost()
        if size is None:
            size = sum(map(len, segments))
            if size > self._room:
                parts = frames.split(kind, target, number, segments, max_frame=self._max_frame)
                # one large message at a time, so that the other side assembles only one
                with self._large_message:
                    for of_kind, _, _, whole, pieces in parts:
                        self.send(of_kind, target, number, pieces, whole)
                return
        if self.acknowledges:
            head = functools.partial(self._head, kind, target, number, size)
        else:
            # without a call of Python's: for each task
            head = functools.partial(frames.pack_header, kind, 0, target, number, size)
        try:
            self._socket.send(head, segments)
        except BaseException as error:
            # the acknowledgement in its header comes another way
            self.acked -= ACK_AFTER
            if isinstance(error, TransportError) and self.lost:
                raise PeerLostError(self._gone()) from error
            raise

    def receive(self, timeout: float | None = None, *, checks: bool = False) -> Message | None:
        """Receive the next message; None when ``timeout`` seconds have passed.

        Args:
            timeout: None for as long as it takes.
            checks: True to read nothing from a file whose descriptor user code has put in place of ours.

        Raises:
            PeerLostError: the other side is gone, and all that it sent was received, or the link is not
                intact.
            WireError: the other side sent a malformed frame.
        """
        if checks and not self._owned.are_intact:
            raise _descriptors_lost()
        deadline = None if not timeout else time.monotonic() + timeout
        source = self._socket
        waits = timeout is None and source.can_wait
        while True:
            # read before receiving, so that what came before the end is still returned
            lost = source.lost
            found = source.receive(waits)
            self.buffered = bool(source.arrived)
            if found is not None:
                frame = frames.parse(found[1])
                # most messages are one frame
                message = frame if frame.is_whole else self._assembler.feed(frame)
                self.received += 1
                if self.acknowledges and self.received - self.acked >= ACK_AFTER:
                    self.acknowledge()
                if message is not None:
                    return message
                continue
            if lost:
                raise PeerLostError(self._gone())
            if waits:
                continue
            wait = timeout if deadline is None else max(0.0, deadline - time.monotonic())
            if wait == 0:
                return None
            self.wait(wait)

    def acknowledge(self) -> None:
        """Send a frame for the acknowledgement alone; where no other has done so for :data:`ACK_AFTER`."""
        self._socket.post(functools.partial(self._head, Kind.GRANT, 0, 0, 0))

    def wait(self, timeout: float | None = None) -> None:
        """Wait until :meth:`receive` may have a message, or the other side is gone."""
        descriptors.await_readable(self._poll, self.fds, timeout)

    def close(self) -> None:
        """Close the connection; idempotent. Threads that wait for it get a PeerLostError."""
        self._socket.close()

    def _gone(self) -> str:
        return f"the connection to {self.url} is gone"

    def _head(self, kind: Kind, target: int, number: int, size: int) -> bytes:
        """The header of a frame that is sent now, which acknowledges what has come."""
        self.acked = received = self.received
        return frames.pack_header(kind, received & 0xFFFFFFFF, target, number, size)

    def _handshake(self, credentials: Credentials, hello: Hello, timeout: float) -> Hello:
        handshake = DialerHandshake(credentials, hello)
        deadline = time.monotonic() + timeout
        answer: tuple[Kind, bytes] | None = handshake.hello()
        while handshake.peer is None:
            if answer is not None:
                self._send_handshake(*answer)
            while True:
                # read before receiving, so that a refusal is still read
                lost = self.lost
                found = self._socket.receive()
                if found is not None:
                    break
                if lost:
                    msg = f"{self.url} closed the connection during the handshake; it is of another run"
                    raise HandshakeError(msg)
                if time.monotonic() > deadline:
                    msg = f"{self.url} did not answer the handshake within {timeout:g} s"
                    raise HandshakeError(msg)
                self.wait(max(0.0, deadline - time.monotonic()))
            answer = handshake.receive(frames.parse(found[1]))
        return handshake.peer

    def _send_handshake(self, kind: Kind, body: bytes) -> None:
        self._socket.send(lambda: frames.header(kind, size=len(body)), [body])


def _descriptors_lost() -> PeerLostError:
    return PeerLostError("the descriptors of the connection are gone")
