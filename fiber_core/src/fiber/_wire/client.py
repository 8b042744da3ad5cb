"""Calls to other processes: many threads on one link, answers matched to calls by number.

:class:`Client` is one such link, :class:`ClientPool` the clients of a process by address.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fiber._base.threads import Reactor, in_turns
from fiber._wire import codec, fork, frames
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Credentials, Hello
from fiber._wire.link import ACK_AFTER, Link
from fiber._wire.reading import Action
from fiber.exceptions import PeerLostError, TransportError
from fiber.model.timing import Timing

log = logging.getLogger("fiber")


class PendingCall:
    """Answer to a call, to come; :meth:`wait` for it."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._answer: Message | None = None
        self._error: BaseException | None = None
        self._callback: Callable[[PendingCall], None] | None = None
        # True while a thread that waits reads messages, or tries to
        self._reads = False
        #: the call's number on its link
        self.number = number

    @property
    def done(self) -> bool:
        """True once the answer has arrived or the connection has ended."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the answer; False when ``timeout`` seconds have passed without."""
        return self.done or in_turns(self._wait_turn, timeout)

    def _wait_turn(self, seconds: float) -> bool:
        """Wait, reading messages where nobody else does; False when the time has passed."""
        self._reads = True
        try:
            if self._client.wait(self._look, self._done.is_set, seconds):
                return self.done
        finally:
            self._reads = False
        return self._done.wait(seconds)

    def _look(self, message: Message) -> Action | None:
        is_mine = message.kind in (Kind.REPLY, Kind.ERROR) and message.id == self.number
        if not is_mine or self._callback is not None:
            return None
        return lambda: self._client.answer(message)

    def result(self) -> memoryview:
        """The body of the answer, once :attr:`done`.

        Raises:
            PeerLostError: the other process is gone.
            Exception: what the other process raised.
        """
        if self._error is not None:
            raise self._error
        answer = self._answer
        if answer is None:
            msg = "the answer is not here yet; wait() for it first"
            raise TransportError(msg)
        if answer.kind is Kind.ERROR:
            if not len(answer.body):
                msg = f"the object asked for no longer exists in {self._client.url}"
                raise PeerLostError(msg)
            raise codec.loads(answer.body)
        return answer.body

    def add_done_callback(self, action: Callable[[PendingCall], None]) -> None:
        """Call ``action`` when the call is done: on the handler thread, or at once if it is already."""
        with self._lock:
            if not self._done.is_set():
                self._callback = action
                return
        action(self)

    def set_answer(self, answer: Message | None, error: BaseException | None) -> None:
        """Set the answer or the error, and run the callback; for :class:`Client`."""
        with self._lock:
            self._answer, self._error = answer, error
            self._done.set()
            callback = self._callback
        if self._reads:
            self._client.wake()
        if callback is None:
            return
        try:
            callback(self)
        except Exception:
            log.exception("fiber: the callback of a call failed; other calls go on")


class Client:
    """One link to the endpoint of another process, read by the reactor.

    Args:
        timing: durations of the run.

    Raises:
        TransportError: no process listens at the URL.
        HandshakeError: the listener is of another run.
    """

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        hello: Hello,
        reactor: Reactor,
        *,
        max_frame: int = frames.MAX_FRAME,
        timing: Timing = Timing(),
    ) -> None:
        self.url = url
        self._reactor = reactor
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingCall] = {}
        self._lock = threading.Lock()
        self._casts: dict[int, Callable[[Message], None]] = {}
        self._on_lost: Callable[[], None] | None = None
        self._ended = False
        self._closed = False
        self._link_closed = False
        self._link = Link(url, credentials, hello, max_frame=max_frame, timing=timing)
        self._reading = self._link.reading(reactor, self._readable)
        for fd in () if self._reading else self._link.fds:
            reactor.add_reader(fd, self._readable)

    @property
    def lost(self) -> bool:
        """True once the other process is gone."""
        return self._link.lost

    @property
    def survives_exit(self) -> bool:
        """True where what was sent still arrives if this process ends at once (Unix sockets)."""
        return self._link.survives_exit

    @property
    def peer(self) -> Hello:
        """The process at the other end."""
        return self._link.peer

    def on_cast(self, target: int, action: Callable[[Message], None]) -> None:
        """Set the handler of messages for ``target`` that are not answers."""
        self._casts[target] = action

    def on_lost(self, action: Callable[[], None]) -> None:
        """Call ``action`` once when the connection ends, on the thread that notices it."""
        with self._lock:
            if not self._ended:
                self._on_lost = action
                return
        action()

    def call_behind(self, action: Callable[[], object]) -> bool:
        """Call ``action`` on the handler thread behind all that has come; False once the connection has ended."""
        with self._lock:
            if self._ended or self._closed:
                return False

        def act() -> None:
            self._readable()
            action()

        self._reactor.call_soon(act)
        return True

    def forget(self, target: int) -> None:
        """Undo :meth:`on_cast`."""
        self._casts.pop(target, None)

    def call(
        self, target: int, segments: Sequence[frames.Buffer], kind: Kind = Kind.CALL
    ) -> PendingCall:
        """Send a call.

        Raises:
            PeerLostError: the other process is gone.
        """
        pending = PendingCall(self, next(self._numbers))
        with self._lock:
            if self._closed or self._link.lost:
                msg = f"the connection to {self.url} is gone"
                raise PeerLostError(msg)
            self._pending[pending.number] = pending
        try:
            self._link.send(kind, target, pending.number, segments)
        except BaseException:
            with self._lock:
                self._pending.pop(pending.number, None)
            raise
        return pending

    def cast(self, target: int, segments: Sequence[frames.Buffer]) -> None:
        """Send a message without an answer.

        Raises:
            PeerLostError: the other process is gone.
        """
        self._link.send(Kind.CAST, target, next(self._numbers), segments)

    def caster(self, target: int) -> Callable[[Sequence[frames.Buffer]], None]:
        """A function that does what :meth:`cast` does for one target, with less for each message."""
        # one large message of a link is under way at a time: all may have the same number
        return functools.partial(self._link.send, Kind.CAST, target, 0)

    def close(self) -> None:
        """Close the link; open calls end in PeerLostError. Idempotent."""
        if fork.is_forked_child():
            # nothing here is ours any more, and another thread may have held the lock
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._close_link()
        self._fail(f"the connection to {self.url} was closed", None)

    def _close_link(self) -> None:
        with self._lock:
            # only once: afterwards the descriptors may be another connection's
            if self._link_closed:
                return
            self._link_closed = True
        if self._reading is not None:
            self._reading.stop()
        for fd in () if self._reading else self._link.fds:
            self._reactor.remove_reader(fd)
        self._link.close()

    def wait(
        self,
        look: Callable[[Any], Action | None],
        is_over: Callable[[], bool],
        timeout: float,
        target: int | None = None,
    ) -> bool:
        """Read in the handler thread's place, see :meth:`~fiber._wire.reading.Reading.wait`.

        Args:
            look: called with each message that fits into a frame; where there is a target, with
                ack and body of a frame, as ``frames.cast`` has them.
            is_over: see there.
            timeout: see there.
            target: for messages to it alone that are no answers.
        """
        if self._reading is None:
            return False

        link = self._link
        acknowledges = link.acknowledges

        def look_at(_: int, data: frames.Buffer) -> Action | None:
            found: Message | tuple[int, memoryview] | None
            if target is None:
                frame = frames.parse(data)
                found = frame if frame.is_whole else None
            else:
                found = frames.cast(data, target)
            action = None if found is None or self._closed else look(found)
            if action is None or not acknowledges:
                return action
            received = link.received + 1

            def act() -> object:
                link.received = received
                if received - link.acked >= ACK_AFTER:
                    link.acknowledge()
                return action()

            return act

        return self._reading.wait(look_at, is_over, timeout)

    def wake(self) -> None:
        """Have the thread in :meth:`wait` look whether it is over."""
        if self._reading is not None:
            self._reading.wake()

    def _readable(self) -> None:
        with self._reading.lock if self._reading is not None else contextlib.nullcontext():
            self._read()

    def _read(self) -> None:
        while not self._closed:
            try:
                message = self._link.receive(timeout=0)
            except TransportError as error:
                # a malformed frame ends the connection too
                self._close_link()
                self._fail(str(error), error)
                return
            if message is None:
                return
            if message.kind in (Kind.REPLY, Kind.ERROR):
                self.answer(message)
            else:
                self._dispatch_cast(message)

    def answer(self, message: Message) -> None:
        """Settle the call that a message answers; for :class:`PendingCall` too."""
        with self._lock:
            pending = self._pending.get(message.id)
        if pending is not None:
            pending.set_answer(message, None)
            # last, so that this can be done again where it was interrupted
            self._pending.pop(message.id, None)

    def _dispatch_cast(self, message: Message) -> None:
        action = self._casts.get(message.target)
        if action is None:
            return
        try:
            action(message)
        except Exception:
            # the messages after it are still read
            log.exception("fiber: the handler of a message of another process failed; others go on")

    def _fail(self, text: str, cause: TransportError | None) -> None:
        with self._lock:
            pending, self._pending = list(self._pending.values()), {}
            action, self._on_lost = self._on_lost, None
            self._ended = True
        for one in pending:
            # one each: several threads will raise them
            error = PeerLostError(text)
            error.__cause__ = cause
            one.set_answer(None, error)
        if action is not None:
            action()


class ClientPool:
    """ClientPool of a process by address: connected on first use, replaced when lost.

    Only one thread at a time dials an address; dialing one that does not answer does not delay
    threads that need another.

    Args:
        connect: makes the client of an address.
        route: address to dial for an address; raises TransportError where there is no route.
    """

    def __init__(
        self, connect: Callable[[str], Client], route: Callable[[str], str] = lambda url: url
    ) -> None:
        self._connect = connect
        self._route = route
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        # locks of the addresses being dialed
        self._dialing: weakref.WeakValueDictionary[str, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._closed = False

    def get(self, address: str) -> Client:
        """Client of an address, connected.

        Raises:
            TransportError: no process listens there.
            PeerLostError: this process is ending.
        """
        address = self._route(address)
        found = self._current(address)
        if found is not None:
            return found
        with self._lock:
            dialing = self._dialing.setdefault(address, threading.Lock())
        with dialing:
            found = self._current(address)
            if found is None:
                self._check_open(address)
                found = self._connect(address)
                for client in self._store(address, found):
                    client.close()
                self._check_open(address)
        return found

    def release(self, addresses: Iterable[str]) -> list[Client]:
        """Remove the clients of some addresses and return them; the caller closes them."""
        with self._lock:
            found = (self._clients.pop(address, None) for address in addresses)
            return [client for client in found if client is not None]

    def close(self) -> None:
        """Close all clients. Idempotent."""
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _current(self, address: str) -> Client | None:
        client = self._clients.get(address)
        return None if client is None or client.lost else client

    def _store(self, address: str, made: Client) -> list[Client]:
        """Add a new client; returns those to close: lost ones, or itself once this is closed."""
        with self._lock:
            if self._closed:
                return [made]
            lost = [key for key, client in self._clients.items() if client.lost]
            closing = [self._clients.pop(key) for key in lost]
            self._clients[address] = made
            return closing

    def _check_open(self, address: str) -> None:
        if self._closed:
            msg = f"this process is ending and connects to {address} no more"
            raise PeerLostError(msg)
