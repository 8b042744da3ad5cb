"""Connection to one host: requests to its agent and output of its jobs; reconnects by itself when it drops."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import attrs
import paramiko

from fiber.exceptions import BackendError, BackendUnavailableError, FiberError, UnknownJobError
from fiber_ssh.config import SshConfig, SshTiming
from fiber_ssh.connect import CONNECTION_ERRORS, Connection, connect
from fiber_ssh.exec_channel import HostInfo, explain_end, open_agent
from fiber_ssh.hosts import Host
from fiber_ssh.remote.wire import JOIN, Data, Message, decoder, pack

log = logging.getLogger("fiber")


class LeaseExpiredError(BackendError):
    """The agent has ended this run's jobs because the run's lease expired."""


class Request:
    """A request to the agent; sent again after a reconnection until it is answered."""

    def __init__(self, number: int, message: Message, answered: Callable[[Request], None]) -> None:
        self.number = number
        self.message = message
        self.answer: Message = {}
        self.error: BackendError | None = None
        self.done = threading.Event()
        self._answered = answered

    def settle(self, answer: Message | None, error: BackendError | None = None) -> None:
        """Set the answer, or the error where none will come."""
        self.answer, self.error = answer or {}, error
        self.done.set()
        self._answered(self)


@attrs.define(eq=False)
class LogFollower:
    """A reader of one job's output."""

    #: number by which the agent knows it
    number: int
    #: the job
    job_id: str
    #: called with the stream, 0 or 1, and the bytes of each piece
    sink: Callable[[int, bytes], object]
    #: called at the end, with the error if there was one
    on_end: Callable[[BackendError | None], None]
    #: only so many last lines; None for all
    tail: int | None = None
    #: True to go on until the job has ended
    follow: bool = True
    #: offset after the last piece in the job's log; None before the first one
    offset: int | None = None

    def request(self) -> Message:
        """The request to the agent for the output, or for what follows the offset."""
        asked: Message = {"op": "follow", "number": self.number, "job": self.job_id}
        asked["follow"] = self.follow
        if self.offset is not None:
            asked["offset"] = self.offset
        elif self.tail is not None:
            asked["tail"] = self.tail
        return asked


class LogFollowers:
    """The followers of one host, across its connections.

    Pieces and ends come on the link's thread; other threads add, forget and wait.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, LogFollower] = {}
        self._changed = threading.Condition()

    def add(
        self,
        job_id: str,
        sink: Callable[[int, bytes], object],
        on_end: Callable[[BackendError | None], None],
        *,
        tail: int | None = None,
        follow: bool = True,
    ) -> LogFollower:
        """Make and register a follower; the caller sends its request."""
        number = next(self._numbers)
        one = LogFollower(number, job_id, sink, on_end, tail, follow)
        self._open[number] = one
        return one

    def open(self) -> list[LogFollower]:
        """The followers that have not ended."""
        return list(self._open.values())

    def receive(self, data: Data) -> None:
        """Hand a piece of output to its follower."""
        one = self._open.get(data.number)
        if one is not None:
            one.offset = data.offset
            one.sink(data.stream, data.content)

    def end(self, number: int, error: BackendError | None = None) -> None:
        """End a follower."""
        one = self._open.pop(number, None)
        if one is not None:
            one.on_end(error)
        with self._changed:
            self._changed.notify_all()

    def wait_ended(self, timeout: float) -> bool:
        """Wait until all have ended; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def forget(self, number: int) -> None:
        """Drop a follower without calling its end."""
        self._open.pop(number, None)

    def end_all(self, error: BackendError | None) -> None:
        """End all followers."""
        for number in list(self._open):
            self.end(number, error)


class AgentLink:
    """Connection to one host and its agent; thread-safe.

    Callbacks run on the link's own thread (``fiber-ssh-HOST``) and must not block. A second thread,
    one a connection, writes.

    Args:
        host: the host.
        config: the settings.
        run_id: the run that this program owns; None to own none.
        lease: seconds of silence after which the agent ends the run's jobs.
        timing: durations.
        on_jobs: called with the records of all jobs of the run, after each connection.
        on_job: called with the record of each job that changed.
        on_beat: called at each heartbeat of the agent.
        on_change: called when the connection came up or failed.
    """

    def __init__(
        self,
        host: Host,
        config: SshConfig,
        *,
        run_id: str | None,
        lease: float,
        timing: SshTiming,
        on_jobs: Callable[[AgentLink, list[Message]], None],
        on_job: Callable[[AgentLink, Message], None],
        on_beat: Callable[[AgentLink], None],
        on_change: Callable[[AgentLink], None],
    ) -> None:
        self.host = host
        self.info: HostInfo | None = None
        #: why it is not up; empty while it is
        self.failure = ""
        #: True where it was up once, and has not been given up since
        self.was_up = False
        self.followers = LogFollowers()
        self._config = config
        self._run_id = run_id
        self._lease = lease
        self._timing = timing
        self._on_jobs = on_jobs
        self._on_job = on_job
        self._on_beat = on_beat
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._watched: set[str] = set()
        self._lock = threading.RLock()
        self._tried = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._out: queue.SimpleQueue[bytes | None] | None = None
        self._retry = threading.Event()

    # -- state

    @property
    def is_up(self) -> bool:
        """True while the agent is connected."""
        return self._out is not None

    @property
    def was_tried(self) -> bool:
        """True once the first attempt to connect has ended."""
        return self._tried.is_set()

    @property
    def transport(self) -> paramiko.Transport:
        """The ssh transport, for further channels.

        Raises:
            BackendUnavailableError: it is not connected.
        """
        connection = self._connection
        if connection is None or not self.is_up:
            raise self.unavailable()
        return connection.transport

    def start(self) -> None:
        """Start the thread that connects. Idempotent."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._run, name=f"fiber-ssh-{self.host.name}", daemon=True
                )
                self._thread.start()

    def wait_connected(self, timeout: float) -> bool:
        """Wait until the first attempt to connect has ended; True where it is up then."""
        self.start()
        self._tried.wait(timeout)
        return self.is_up

    def disconnect(self) -> None:
        """Close the present connection; the link's thread makes a new one."""
        connection = self._connection
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """End the connection and its threads. Idempotent."""
        self._closing.set()
        self._retry.set()
        self.disconnect()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._config.connect_timeout + self._timing.host_end)

    def expire(self, why: str) -> None:
        """Fail all pending requests, as after an expired lease, and reconnect."""
        self.failure = why
        self.was_up = False
        self._fail_requests(why)
        self.disconnect()

    def _fail_requests(self, why: str) -> None:
        with self._lock:
            requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            request.settle(None, BackendUnavailableError(why))

    # -- requests

    def notify(self, op: str, **fields: Any) -> None:
        """Send a message without an answer; dropped while the agent is not connected."""
        out = self._out
        if out is not None:
            out.put(pack({"op": op, **fields}))

    def send_request(
        self, op: str, fields: Message, answered: Callable[[Request], None] = lambda _: None
    ) -> Request:
        """Make and send a request; ``answered`` is called on the link's thread."""
        request = self.new_request(op, fields, answered)
        self.send(request)
        return request

    def new_request(
        self, op: str, fields: Message, answered: Callable[[Request], None] = lambda _: None
    ) -> Request:
        """Make a request for :meth:`send`."""
        number = next(self._numbers)
        return Request(number, {"id": number, "op": op, **fields}, answered)

    def send(self, request: Request) -> None:
        """Send a request, now or once the agent is connected."""
        with self._lock:
            if self._closing.is_set():
                request.settle(None, self.unavailable())
                return
            self._requests[request.number] = request
            if self._out is not None:
                self._out.put(pack(request.message))

    def call(self, op: str, **fields: Any) -> Message:
        """Send a request and wait for its answer.

        Raises:
            BackendUnavailableError: the agent is not connected, or does not answer in time.
            UnknownJobError: the agent does not know the job.
        """
        if not self.wait_connected(self._config.connect_timeout * 2):
            raise self.unavailable()
        request = self.send_request(op, fields)
        if not request.done.wait(self._timing.answer):
            with self._lock:
                self._requests.pop(request.number, None)
            raise self.unavailable()
        if request.error is not None:
            raise request.error
        return request.answer

    def watch(self, run_id: str) -> None:
        """Subscribe to changes of a run's jobs."""
        with self._lock:
            self._watched.add(run_id)
        self._request_watch(run_id)

    def follow(self, one: LogFollower) -> None:
        """Request a job's output for a follower."""
        self.send_request("follow", one.request(), lambda request: self._on_followed(one, request))

    def _on_followed(self, one: LogFollower, request: Request) -> None:
        if request.error is not None:
            self.followers.end(one.number, request.error)

    def _request_watch(self, run_id: str) -> None:
        def answered(request: Request) -> None:
            for record in request.answer.get("jobs", ()):
                self._on_job(self, record)

        self.send_request("watch", {"run": run_id}, answered)

    def unavailable(self) -> BackendUnavailableError:
        """The error of a request that cannot be sent, with the reason."""
        why = self.failure or "it does not answer"
        return BackendUnavailableError(f"host {self.host.name} cannot be asked: {why}")

    # -- the link's thread

    def _run(self) -> None:
        pause = self._timing.first_pause
        while not self._closing.is_set():
            try:
                connection = connect(self.host, self._config)
            except FiberError as error:
                self._fail(str(error))
            except Exception as error:
                log.exception("fiber: connecting to host %s failed", self.host.name)
                self._fail(f"{type(error).__name__}: {error}")
            else:
                if self._serve(connection):
                    pause = self._timing.first_pause
            self._retry.wait(pause)
            self._retry.clear()
            pause = min(pause * 2, self._timing.longest_pause)
        self._fail_requests(f"the connection to host {self.host.name} is closed")
        self.followers.end_all(None)

    def _fail(self, why: str, *, level: int = logging.WARNING) -> None:
        if self._closing.is_set():
            return
        if why != self.failure:
            log.log(level, "host %s: %s", self.host.name, why)
        self.failure = why
        self._tried.set()
        self._on_change(self)

    def _serve(self, connection: Connection) -> bool:
        """Serve one connection until it ends; True where the agent accepted it."""
        self._connection = connection
        channel = writer = None
        out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        attached = False
        try:
            if self._closing.is_set():
                return False
            channel, self.info = open_agent(
                connection.transport,
                self.host.name,
                self.host.python,
                self._config.root,
                self._config.connect_timeout,
            )
            writer = threading.Thread(target=_write, args=(channel, out), daemon=True)
            writer.start()
            attached = self._read_messages(channel, out)
            words = "the connection ended"
            if not attached and connection.transport.is_active():
                words = explain_end(channel, self.host.name, self.host.python)
        except FiberError as error:
            words = str(error)
        except (*CONNECTION_ERRORS, ValueError) as error:
            words = f"the connection ended: {error or type(error).__name__}"
        except Exception as error:
            # whatever a host says must not end this thread, for which requests wait
            log.debug("fiber: an answer of host %s", self.host.name, exc_info=error)
            words = f"its agent says what makes no sense: {type(error).__name__}: {error}"
        finally:
            self._out = None
            self._connection = None
            out.put(None)
            connection.close()
            if writer is not None:
                writer.join()
        self._fail(words, level=logging.INFO if attached else logging.WARNING)
        return attached

    def _read_messages(
        self, channel: paramiko.Channel, out: queue.SimpleQueue[bytes | None]
    ) -> bool:
        decoding = decoder()
        out.put(pack({"id": 0, "op": JOIN, "run": self._run_id, "lease": self._lease}))
        attached = False
        while data := channel.recv(256 * 1024):
            decoding.feed(data)
            for message in decoding.messages():
                if isinstance(message, Data):
                    self.followers.receive(message)
                elif message.get("id") == 0:
                    if "ok" not in message:
                        raise self._error_of(message)
                    attached = True
                    self._attached(message, out)
                else:
                    self._dispatch(message, out)
        return attached

    def _attached(self, message: Message, out: queue.SimpleQueue[bytes | None]) -> None:
        self._on_beat(self)
        with self._lock:
            for run_id in self._watched:
                self._request_watch(run_id)
            # follow requests are repeated from the present offset, also unanswered ones
            open_now = {one.number: one for one in self.followers.open()}
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
        self._on_jobs(self, message["ok"]["jobs"])
        self._tried.set()
        self._on_change(self)

    def _dispatch(self, message: Message, out: queue.SimpleQueue[bytes | None]) -> None:
        if "beat" in message:
            out.put(pack({"op": "heard", "beat": message["beat"]}))
            self._on_beat(self)
        elif "job" in message:
            self._on_job(self, message["job"])
        elif "end" in message:
            self.followers.end(message["end"])
        elif "id" in message:
            with self._lock:
                request = self._requests.pop(message["id"], None)
            if request is not None:
                if "ok" in message:
                    request.settle(message["ok"])
                else:
                    request.settle(None, self._error_of(message))

    def _error_of(self, message: Message) -> BackendError:
        words = str(message.get("words"))
        kind = message.get("error")
        if kind == "unknown":
            return UnknownJobError(f"{words} ({self.host.name})")
        if kind == "lapsed":
            return LeaseExpiredError(words)
        if kind == "protocol":
            return BackendUnavailableError(
                "the agent of another release of fiber has jobs there; it is left alone, and the "
                "host can be used once they have ended: wait, or end them with `fiber kill` of "
                "that release"
            )
        return BackendError(f"the agent on host {self.host.name} reports: {words}")


def _write(channel: paramiko.Channel, out: queue.SimpleQueue[bytes | None]) -> None:
    while (data := out.get()) is not None:
        try:
            channel.sendall(data)
        except CONNECTION_ERRORS:
            # the reading thread sees the same error
            return
