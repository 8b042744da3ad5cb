"""A channel to a supervisor seen from its other end: requests, replies, signs of life."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable

from fiber._agent.supervisor import messages
from fiber._agent.supervisor.kernel import ProcessWatch
from fiber._agent.supervisor.protocol import Decoder, encode
from fiber.exceptions import BackendUnavailableError, FiberError, ForkedError, WireError

__all__ = ["Connection", "SupervisorGoneError"]

_READ = 1 << 18
_HEARTBEAT = 1.0
#: seconds that a supervisor may take to come up: it imports what it is told to
_START = 120.0
#: seconds that it may take to end once it has said that it will
_LEAVE = 10.0


class SupervisorGoneError(BackendUnavailableError):
    """The supervisor ended before it carried out a request; another one can be started."""


class _Pending:
    """A request whose reply has not come."""

    __slots__ = ("error", "event", "on_reply", "reply", "request")

    def __init__(
        self, request: messages.Request, on_reply: Callable[[messages.Reply], None]
    ) -> None:
        self.event = threading.Event()
        self.request = request
        self.reply: messages.Reply | None = None
        self.error: FiberError | None = None
        self.on_reply = on_reply


class Connection:
    """Asks from any thread; reads, and judges silence, on a thread of its own.

    Args:
        channel: connected to the supervisor; closed at the end.
        on_message: called on the thread with what is no reply.
        on_lost: called on the thread when the supervisor is lost, before anything else follows:
            the time to kill what it supervised.
        on_end: called on the thread as the last thing, with the reason; "" where the supervisor
            ended because there was nothing left to do or on request.
        process: the supervisor, where this process started it: it is killed when it is silent.
        lease: seconds of silence after which it is given up.
        name: of the thread.
    """

    def __init__(
        self,
        channel: socket.socket,
        *,
        on_message: Callable[[object], None],
        on_lost: Callable[[], None],
        on_end: Callable[[str], None],
        process: subprocess.Popen[bytes] | None,
        lease: float,
        name: str,
    ) -> None:
        self._channel = channel
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_end = on_end
        self._process = process
        self._lease = lease
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._ended: str | None = None
        self._leaving = False
        self._closing = False
        self._said_hello = process is None
        self._heard = time.monotonic()
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def last_heard(self) -> float:
        """When the supervisor last gave a sign of life, on the monotonic clock."""
        return self._heard

    @property
    def has_ended(self) -> bool:
        """True once no request can be carried out any more."""
        return self._ended is not None or self._leaving

    @property
    def is_running(self) -> bool:
        """True while the thread may still call back."""
        return self._thread.is_alive()

    @property
    def is_foreign(self) -> bool:
        """True in a process that the user's own fork made, where there is no such thread."""
        return os.getpid() != self._owner

    def ask(
        self,
        make: Callable[[int], messages.Request],
        *,
        on_reply: Callable[[messages.Reply], None] = lambda _: None,
    ) -> messages.Reply:
        """Send a request and wait for its reply.

        Args:
            make: makes the request from its number.
            on_reply: called on the thread with the reply, before any message that follows it.

        Raises:
            SupervisorGoneError: the supervisor ended first.
            ForkedError: this is not the process that made the connection.
        """
        if self.is_foreign:
            msg = (
                f"process {os.getpid()} was forked from {self._owner}, whose supervisor it cannot "
                "use; start it with fiber.Process"
            )
            raise ForkedError(msg)
        number = next(self._numbers)
        pending = _Pending(make(number), on_reply)
        frame = encode(pending.request)
        with self._lock:
            if self.has_ended:
                raise SupervisorGoneError(self._ended or "the supervisor has ended")
            self._pending[number] = pending
        try:
            with self._sending:
                self._channel.sendall(frame)
        except OSError:
            # the thread finds out why, and fails this request with the rest
            self._wake()
        pending.event.wait()
        if pending.error is not None:
            raise pending.error
        assert pending.reply is not None
        return pending.reply

    def leave(self) -> None:
        """Accept no more requests: the supervisor has said that it ends."""
        with self._lock:
            self._leaving = True

    def close(self) -> None:
        """Stop the thread, and wait for a supervisor of ours to end. Idempotent."""
        with self._lock:
            self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        with self._lock:
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"w")

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        watch = self._watch_process()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._channel, selectors.EVENT_READ)
                selector.register(self._wake_reader, selectors.EVENT_READ)
                if watch is not None:
                    selector.register(watch, selectors.EVENT_READ)
                reason = self._listen(selector, watch)
        finally:
            if watch is not None:
                watch.close()
        self._finish(reason)

    def _watch_process(self) -> ProcessWatch | None:
        if self._process is None:
            return None
        try:
            return ProcessWatch(self._process.pid)
        except OSError:
            # the end of the channel tells as well, if nobody else holds the other end
            return None

    def _listen(self, selector: selectors.BaseSelector, watch: ProcessWatch | None) -> str:
        """Read until the end; returns the reason."""
        decoder = Decoder()
        turned = time.monotonic()
        beat = turned + _HEARTBEAT
        while True:
            ready = {key.fd for key, _ in selector.select(max(0.0, beat - time.monotonic()))}
            now = time.monotonic()
            if now - turned > _HEARTBEAT + self._lease / 2:
                # this process was stopped or starved itself: what the supervisor said meanwhile
                # lies in the socket still
                self._heard = now
            turned = now
            try:
                is_open = self._receive(decoder)
            except WireError as error:
                return f"it speaks nonsense: {error}"
            except OSError:
                # it ended before it had read all
                is_open = False
            ended = watch is not None and watch.fileno() in ready
            if ended or not is_open:
                return "" if self._leaving or self._closing else "it ended without a word"
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
                if self._closing:
                    return ""
            silent = now - self._heard
            if silent > (self._lease if self._is_judged() else _START):
                return f"it has been silent for {silent:.1f} s"
            if now >= beat:
                beat = now + _HEARTBEAT
                self._ping()

    def _receive(self, decoder: Decoder) -> bool:
        while True:
            try:
                data = self._channel.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._heard = time.monotonic()
            decoder.feed(data)
            for message in decoder.messages():
                self._handle(message)

    def _handle(self, message: object) -> None:
        if isinstance(message, messages.REPLIES):
            with self._lock:
                pending = self._pending.pop(message.number, None)
            if pending is not None:
                if isinstance(pending.request, messages.Shutdown):
                    self.leave()
                pending.on_reply(message)
                pending.reply = message
                pending.event.set()
            return
        if isinstance(message, messages.Hello):
            self._said_hello = True
        elif isinstance(message, messages.Leaving):
            self.leave()
        self._on_message(message)

    def _is_judged(self) -> bool:
        # imports run user code, for as long as they like
        with self._lock:
            return self._said_hello and not any(
                isinstance(pending.request, messages.Preload) for pending in self._pending.values()
            )

    def _ping(self) -> None:
        # never wait here: a supervisor that does not read must be found out
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._channel.send(encode(messages.Ping()), socket.MSG_DONTWAIT)
            finally:
                self._sending.release()

    def _finish(self, reason: str) -> None:
        words = f"the supervisor of this run's jobs is lost: {reason}" if reason else ""
        if reason:
            # whoever hangs in a send is let go
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
            if self._process is not None:
                self._process.kill()
            self._on_lost()
        with self._lock:
            self._ended = words
            pending = list(self._pending.values())
            self._pending.clear()
            os.close(self._wake_writer)
            os.close(self._wake_reader)
            self._wake_writer = -1
        self._channel.close()
        if self._process is not None:
            _await(self._process)
        self._on_end(words)
        for request in pending:
            request.error = SupervisorGoneError(words or "the supervisor has ended")
            request.event.set()


def _await(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_LEAVE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
