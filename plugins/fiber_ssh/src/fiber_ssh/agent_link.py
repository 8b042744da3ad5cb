"""The connection to one host: made when it is needed, used for everything, made again when it drops."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import paramiko

from fiber.exceptions import BackendError, BackendUnavailableError, FiberError, UnknownJobError
from fiber_ssh.config import SshConfig
from fiber_ssh.dial import DROPPED, Connection, dial
from fiber_ssh.follows import Follow, Follows
from fiber_ssh.hosts import Host
from fiber_ssh.remote.wire import Data, Decoder, Message, pack
from fiber_ssh.shell import About, open_agent

__all__ = ["HostLink", "LapsedError", "Request"]

log = logging.getLogger("fiber")

#: seconds between attempts to connect, the first and the longest
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class LapsedError(BackendError):
    """The host's agent ended what it ran for this run: its lease was over."""


class Request:
    """Something asked of the agent; asked again after a drop, until it is answered."""

    def __init__(self, number: int, message: Message, answered: Callable[[Request], None]) -> None:
        self.number = number
        self.message = message
        self.answer: Message = {}
        self.error: BackendError | None = None
        self.done = threading.Event()
        self._answered = answered

    def settle(self, answer: Message | None, error: BackendError | None = None) -> None:
        """It is answered, or never will be."""
        self.answer, self.error = answer or {}, error
        self.done.set()
        self._answered(self)


class HostLink:
    """One host's connection and agent; thread-safe.

    Callbacks come on the link's own thread and must not wait.

    Args:
        host: the host.
        config: the settings.
        run_id: the run whose owner this program is, or None.
        lease: seconds for which the agent bears its silence.
        on_jobs: called with all that the agent has of the run, each time it is attached.
        on_job: called with each record of a job that changed.
        on_beat: called with each sign of life.
        on_change: called when it came up or failed.
    """

    def __init__(
        self,
        host: Host,
        config: SshConfig,
        *,
        run_id: str | None,
        lease: float,
        on_jobs: Callable[[HostLink, list[Message]], None],
        on_job: Callable[[HostLink, Message], None],
        on_beat: Callable[[HostLink], None],
        on_change: Callable[[HostLink], None],
    ) -> None:
        self.host = host
        self.about: About | None = None
        #: why it is not up, in words
        self.failure = ""
        #: True where it was up once, and has not been given up since
        self.was_up = False
        self.follows = Follows()
        self._config = config
        self._run_id = run_id
        self._lease = lease
        self._on_jobs = on_jobs
        self._on_job = on_job
        self._on_beat = on_beat
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._watched: set[str] = set()
        self._lock = threading.RLock()
        self._known = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._out: queue.SimpleQueue[bytes | None] | None = None
        self._retry = threading.Event()

    # -- state

    @property
    def is_up(self) -> bool:
        """True while the agent can be asked."""
        return self._out is not None

    @property
    def is_known(self) -> bool:
        """True once the first attempt to connect has ended."""
        return self._known.is_set()

    @property
    def transport(self) -> paramiko.Transport:
        """The connection, for other channels.

        Raises:
            BackendUnavailableError: there is none now.
        """
        connection = self._connection
        if connection is None or not self.is_up:
            raise self.unavailable()
        return connection.transport

    def begin(self) -> None:
        """Connect, in a thread of its own. Idempotent."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._run, name=f"fiber-ssh-{self.host.name}", daemon=True
                )
                self._thread.start()

    def wait_known(self, timeout: float) -> bool:
        """Wait until the first attempt to connect has ended; True where it is up then."""
        self.begin()
        self._known.wait(timeout)
        return self.is_up

    def drop(self) -> None:
        """Give up the connection there is, for a new one."""
        connection = self._connection
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """End the connection and its threads. Idempotent."""
        self._closing.set()
        self._retry.set()
        self.drop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._config.connect_timeout + 5.0)

    def give_up(self, why: str) -> None:
        """It was silent for too long: nothing that was asked will be answered; begin anew."""
        self.failure = why
        self.was_up = False
        self._fail_requests(why)
        self.drop()

    def _fail_requests(self, why: str) -> None:
        with self._lock:
            requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            request.settle(None, BackendUnavailableError(why))

    # -- asking

    def post(self, op: str, **fields: Any) -> None:
        """Tell the agent something that needs no answer; nothing where it cannot be told."""
        out = self._out
        if out is not None:
            out.put(pack({"op": op, **fields}))

    def ask(
        self, op: str, fields: Message, answered: Callable[[Request], None] = lambda _: None
    ) -> Request:
        """Ask the agent; ``answered`` is called on the link's thread."""
        request = self.prepare(op, fields, answered)
        self.send(request)
        return request

    def prepare(
        self, op: str, fields: Message, answered: Callable[[Request], None] = lambda _: None
    ) -> Request:
        """What :meth:`send` asks."""
        number = next(self._numbers)
        return Request(number, {"id": number, "op": op, **fields}, answered)

    def send(self, request: Request) -> None:
        """Ask the agent, now or as soon as it can be asked."""
        with self._lock:
            if self._closing.is_set():
                request.settle(None, self.unavailable())
                return
            self._requests[request.number] = request
            if self._out is not None:
                self._out.put(pack(request.message))

    def request(self, op: str, *, timeout: float, **fields: Any) -> Message:
        """Ask the agent and wait.

        Raises:
            BackendUnavailableError: it cannot be asked, or does not answer in time.
            UnknownJobError: the job is not there.
        """
        if not self.wait_known(self._config.connect_timeout * 2):
            raise self.unavailable()
        request = self.ask(op, fields)
        if not request.done.wait(timeout):
            with self._lock:
                self._requests.pop(request.number, None)
            raise self.unavailable()
        if request.error is not None:
            raise request.error
        return request.answer

    def watch(self, run_id: str) -> None:
        """Have changes of a run's jobs told."""
        with self._lock:
            self._watched.add(run_id)
        self.ask("watch", {"run": run_id}, lambda request: self._told(request.answer))

    def follow(self, one: Follow) -> None:
        """Ask for output."""
        self.ask("follow", one.request(), lambda request: self._followed(one, request))

    def _followed(self, one: Follow, request: Request) -> None:
        if request.error is not None:
            self.follows.end(one.number, request.error)

    def _told(self, answer: Message) -> None:
        for record in answer.get("jobs", ()):
            self._on_job(self, record)

    def unavailable(self) -> BackendUnavailableError:
        """That it cannot be asked, and why."""
        why = self.failure or "it does not answer"
        return BackendUnavailableError(f"host {self.host.name} cannot be asked: {why}")

    # -- the link's thread

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closing.is_set():
            try:
                connection = dial(self.host, self._config)
            except FiberError as error:
                self._failed(str(error))
            except Exception as error:
                log.exception("connecting to host %s failed", self.host.name)
                self._failed(f"{type(error).__name__}: {error}")
            else:
                if self._serve(connection):
                    pause = _FIRST_PAUSE
            self._retry.wait(pause)
            self._retry.clear()
            pause = min(pause * 2, _LONGEST_PAUSE)
        self._fail_requests(f"the connection to host {self.host.name} is closed")
        self.follows.end_all(None)

    def _failed(self, why: str, *, level: int = logging.WARNING) -> None:
        if self._closing.is_set():
            return
        if why != self.failure:
            log.log(level, "host %s: %s", self.host.name, why)
        self.failure = why
        self._known.set()
        self._on_change(self)

    def _serve(self, connection: Connection) -> bool:
        """Talk to the agent until the connection ends; True where there was something to it."""
        self._connection = connection
        channel = writer = None
        out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        attached = False
        try:
            if self._closing.is_set():
                return False
            channel, self.about = open_agent(
                connection.transport,
                self.host.name,
                self.host.python,
                self._config.root,
                self._config.connect_timeout,
            )
            writer = threading.Thread(target=_write, args=(channel, out), daemon=True)
            writer.start()
            attached = self._talk(channel, out)
            words = "the connection ended"
        except FiberError as error:
            words = str(error)
        except (*DROPPED, ValueError) as error:
            words = f"the connection ended: {error or type(error).__name__}"
        finally:
            self._out = None
            self._connection = None
            out.put(None)
            connection.close()
            if writer is not None:
                writer.join()
        self._failed(words, level=logging.INFO if attached else logging.WARNING)
        return attached

    def _talk(self, channel: paramiko.Channel, out: queue.SimpleQueue[bytes | None]) -> bool:
        decoder = Decoder()
        hello: Message = {"id": 0, "op": "list", "run": "-"}
        if self._run_id is not None:
            hello = {"id": 0, "op": "attach", "run": self._run_id, "lease": self._lease}
        out.put(pack(hello))
        attached = False
        while data := channel.recv(256 * 1024):
            for message in decoder.feed(data):
                if isinstance(message, Data):
                    self.follows.came(message)
                elif message.get("id") == 0:
                    attached = True
                    self._attached(message, out)
                else:
                    self._heard(message, out)
        return attached

    def _attached(self, message: Message, out: queue.SimpleQueue[bytes | None]) -> None:
        self._on_beat(self)
        with self._lock:
            for run_id in self._watched:
                self.ask("watch", {"run": run_id}, lambda request: self._told(request.answer))
            # output goes on where it stopped, also where it came before the word that it would
            open_now = {one.number: one for one in self.follows.open()}
            for number, request in sorted(self._requests.items()):
                one = open_now.pop(request.message.get("number", 0), None)
                if one is not None:
                    request.message = {"id": number, **one.request()}
                out.put(pack(request.message))
            for one in open_now.values():
                out.put(pack(one.request()))
            self._out = out
            self.failure = ""
            self.was_up = True
        if "ok" in message:
            self._on_jobs(self, message["ok"]["jobs"])
        self._known.set()
        self._on_change(self)

    def _heard(self, message: Message, out: queue.SimpleQueue[bytes | None]) -> None:
        if "beat" in message:
            out.put(pack({"op": "heard", "beat": message["beat"]}))
            self._on_beat(self)
        elif "job" in message:
            self._on_job(self, message["job"])
        elif "end" in message:
            self.follows.end(message["end"])
        elif "id" in message:
            with self._lock:
                request = self._requests.pop(message["id"], None)
            if request is not None:
                if "ok" in message:
                    request.settle(message["ok"])
                else:
                    request.settle(None, self._error(message))

    def _error(self, message: Message) -> BackendError:
        words = str(message.get("words"))
        kind = message.get("error")
        if kind == "unknown":
            return UnknownJobError(f"{words} ({self.host.name})")
        if kind == "lapsed":
            return LapsedError(words)
        return BackendError(f"the agent on host {self.host.name} says: {words}")


def _write(channel: paramiko.Channel, out: queue.SimpleQueue[bytes | None]) -> None:
    while (data := out.get()) is not None:
        try:
            channel.sendall(data)
        except DROPPED:
            # whoever reads finds out as well
            return
