"""Calls to another process: many threads on one link, answers matched by number.

The connections of a process for calls to others, one for each address.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence

from fiber._wire import codec, fork, frames
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Hello
from fiber._wire.identity import Credentials
from fiber._wire.link import Link
from fiber._wire.reactor import Reactor
from fiber.exceptions import PeerLostError, TransportError

log = logging.getLogger("fiber")


class Pending:
    """A call that was sent; :meth:`wait` for its answer."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._answer: Message | None = None
        self._error: BaseException | None = None
        self._then: Callable[[Pending], None] | None = None
        #: the call's number on its link
        self.number = number

    @property
    def done(self) -> bool:
        """True once the answer is here, or never will be."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the answer; False when ``timeout`` seconds have passed without."""
        return self._done.wait(timeout)

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

    def then(self, action: Callable[[Pending], None]) -> None:
        """Have ``action`` called once it is done, on the handler thread or at once."""
        with self._lock:
            if not self._done.is_set():
                self._then = action
                return
        action(self)

    def settle(self, answer: Message | None, error: BaseException | None) -> None:
        """Store the answer; for :class:`Client`."""
        with self._lock:
            self._answer, self._error = answer, error
            self._done.set()
            then = self._then
        if then is None:
            return
        try:
            then(self)
        except Exception:
            log.exception("fiber: what was to follow a call failed; other calls go on")


class Client:
    """One link to the endpoint of another process, read by the reactor.

    Raises:
        TransportError: nobody listens at the URL.
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
    ) -> None:
        self.url = url
        self._reactor = reactor
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._lock = threading.Lock()
        self._casts: dict[int, Callable[[Message], None]] = {}
        self._on_lost: Callable[[], None] | None = None
        self._ended = False
        self._closed = False
        self._hung_up = False
        self._link = Link(url, credentials, hello, max_frame=max_frame)
        for fd in self._link.fds:
            reactor.add_reader(fd, self._readable)

    @property
    def lost(self) -> bool:
        """True once the other process is gone."""
        return self._link.lost

    @property
    def keeps(self) -> bool:
        """True where what was sent arrives whatever becomes of this process."""
        return self._link.keeps

    @property
    def peer(self) -> Hello:
        """The process at the other end."""
        return self._link.peer

    def on_cast(self, target: int, action: Callable[[Message], None]) -> None:
        """Have ``action`` called for messages that the other process sends unasked."""
        self._casts[target] = action

    def on_lost(self, action: Callable[[], None]) -> None:
        """Have ``action`` called once when the connection ends, on the thread that notes it."""
        with self._lock:
            if not self._ended:
                self._on_lost = action
                return
        action()

    def forget(self, target: int) -> None:
        """Undo :meth:`on_cast`."""
        self._casts.pop(target, None)

    def call(
        self, target: int, segments: Sequence[frames.Buffer], kind: Kind = Kind.CALL
    ) -> Pending:
        """Send a call.

        Raises:
            PeerLostError: the other process is gone.
        """
        pending = Pending(self, next(self._numbers))
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
        """Send a message that nobody answers.

        Raises:
            PeerLostError: the other process is gone.
        """
        self._link.send(Kind.CAST, target, next(self._numbers), segments)

    def close(self) -> None:
        """Close the link; open calls end in PeerLostError. Idempotent."""
        if fork.is_stranger():
            # nothing here is ours any more, and another thread may have held the lock
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._hang_up()
        self._fail(f"the connection to {self.url} was closed", None)

    def _hang_up(self) -> None:
        with self._lock:
            # but once: the descriptors may be another connection's by now
            if self._hung_up:
                return
            self._hung_up = True
        for fd in self._link.fds:
            self._reactor.remove_reader(fd)
        self._link.close()

    def _readable(self) -> None:
        while not self._closed:
            try:
                message = self._link.receive(timeout=0)
            except TransportError as error:
                # after nonsense too there is nothing left to wait for
                self._hang_up()
                self._fail(str(error), error)
                return
            if message is None:
                return
            if message.kind in (Kind.REPLY, Kind.ERROR):
                with self._lock:
                    pending = self._pending.pop(message.id, None)
                if pending is not None:
                    pending.settle(message, None)
            else:
                self._tell(message)

    def _tell(self, message: Message) -> None:
        action = self._casts.get(message.target)
        if action is None:
            return
        try:
            action(message)
        except Exception:
            # what else came with it is read all the same
            log.exception("fiber: what takes a message of another process failed; others go on")

    def _fail(self, text: str, cause: TransportError | None) -> None:
        with self._lock:
            pending, self._pending = list(self._pending.values()), {}
            action, self._on_lost = self._on_lost, None
            self._ended = True
        for one in pending:
            # one for each: a raised exception belongs to the thread that raises it
            error = PeerLostError(text)
            error.__cause__ = cause
            one.settle(None, error)
        if action is not None:
            action()


class Clients:
    """Makes them on first use; those that are lost make room for new ones.

    One thread dials an address, and holds up nobody who dials another: a host that does not answer
    costs only those who ask for it.

    Args:
        connect: makes the connection to an address.
        way: what is dialled in place of an address; raises TransportError where nothing can be.
    """

    def __init__(
        self, connect: Callable[[str], Client], way: Callable[[str], str] = lambda url: url
    ) -> None:
        self._connect = connect
        self._way = way
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        # as long as somebody dials
        self._dialling: weakref.WeakValueDictionary[str, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._closed = False

    def get(self, address: str) -> Client:
        """The connection to an address.

        Raises:
            TransportError: nobody listens there.
            PeerLostError: this process is ending.
        """
        address = self._way(address)
        found = self._found(address)
        if found is not None:
            return found
        with self._lock:
            dialling = self._dialling.setdefault(address, threading.Lock())
        with dialling:
            found = self._found(address)
            if found is None:
                self._refuse_if_closed(address)
                found = self._connect(address)
                for client in self._keep(address, found):
                    client.close()
                self._refuse_if_closed(address)
        return found

    def release(self, addresses: Iterable[str]) -> list[Client]:
        """Those of some addresses, which are used no more and are the caller's to close."""
        with self._lock:
            found = (self._clients.pop(address, None) for address in addresses)
            return [client for client in found if client is not None]

    def close(self) -> None:
        """Close them all. Idempotent."""
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _found(self, address: str) -> Client | None:
        client = self._clients.get(address)
        return None if client is None or client.lost else client

    def _keep(self, address: str, made: Client) -> list[Client]:
        """Remember a new connection; those that are to be closed now, itself where it is too late."""
        with self._lock:
            if self._closed:
                return [made]
            lost = [key for key, client in self._clients.items() if client.lost]
            closing = [self._clients.pop(key) for key in lost]
            self._clients[address] = made
            return closing

    def _refuse_if_closed(self, address: str) -> None:
        if self._closed:
            msg = f"this process is ending and connects to {address} no more"
            raise PeerLostError(msg)
