"""Calls to another process: many threads on one link, answers matched by number."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence

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
