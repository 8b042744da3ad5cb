"""Protocol between a supervisor and its peers: the messages, how they become frames, and the supervisor's end of a channel.

A frame is a 4-byte big-endian length and a pickle. Peers hold inherited descriptors, which proves
that they belong, so pickles are read; still only Fiber's own classes are made from them, for a
supervisor must never import a user's module by way of a message. Remote jobs use the same messages,
inside messages of :mod:`fiber._wire`.
"""

from __future__ import annotations

import contextlib
import enum
import io
import os
import pickle
import resource
import select
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fiber._agent.supervisor.jobs import Owner
from fiber._base import values
from fiber._base.sockets import Buffered
from fiber._base.threads import Loop
from fiber._wire.descriptors import borrowed_socket
from fiber.exceptions import WireError
from fiber.model import Device, JobSpec, JobStatus, Timing

if TYPE_CHECKING:
    from fiber._wire.descriptors import Descriptors

# one of them has two names
_LIMITS: tuple[int, ...] = tuple(
    {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
)


@values.frozen
class Attributes:
    """Attributes of a process that its children inherit, of its main thread where threads have some of their own.

    A process that its supervisor forks has the supervisor's, which are those of the program some time ago. So a
    submission brings them, as it brings environment and working directory.
    """

    #: bits that new files do not get; None where that cannot be read
    umask: int | None
    #: from -20, the highest priority, to 19
    nice: int
    #: the CPUs it may use; none where the system has no such thing
    cpus: tuple[int, ...]
    #: number, soft and hard value of each limit
    limits: tuple[tuple[int, int, int], ...]

    @classmethod
    def mine(cls) -> Attributes:
        """Those of this process."""
        pid = os.getpid()
        return cls(
            umask=_umask(),
            nice=os.getpriority(os.PRIO_PROCESS, pid),
            cpus=_cpus(pid),
            limits=tuple((which, *resource.getrlimit(which)) for which in _LIMITS),
        )

    def adopt(self) -> None:
        """Make them this process's; one that the system does not allow it stays as it is."""
        if self.umask is not None:
            os.umask(self.umask)
        if os.getpriority(os.PRIO_PROCESS, 0) != self.nice:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        if hasattr(os, "sched_setaffinity") and self.cpus != _cpus(0):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self.cpus)
        for which, soft, hard in self.limits:
            if resource.getrlimit(which) != (soft, hard):
                with contextlib.suppress(OSError, ValueError):
                    resource.setrlimit(which, (soft, hard))


def _cpus(pid: int) -> tuple[int, ...]:
    return tuple(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else ()


def _umask() -> int | None:
    # to ask by os.umask() is to change it for the other threads meanwhile
    try:
        descriptor = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    _, found, rest = status.partition(b"\nUmask:")
    return int(rest.split(None, 1)[0], 8) if found else None


#: bytes of payload that a frame can have; what a job is given at its start travels in one
MAX_FRAME = 1 << 30

#: the length before each payload
HEADER = struct.Struct("!I")


def encode(message: object) -> bytes:
    """A message as a frame.

    Raises:
        WireError: it is larger than a frame can be, or cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(message)
    except Exception as error:
        msg = f"a {type(message).__name__} for the supervisor cannot be pickled: {error}"
        raise WireError(msg) from error
    payload = buffer.getvalue()
    if len(payload) > MAX_FRAME:
        msg = (
            f"a {type(message).__name__} of {len(payload)} bytes is larger than the {MAX_FRAME} "
            "that a supervisor accepts; send big values through a queue or a pipe"
        )
        raise WireError(msg)
    return HEADER.pack(len(payload)) + payload


class Decoder:
    """Turns the bytes of a stream back into messages; the defaults are those of a supervisor's channel.

    Args:
        header: the length before each payload, and what else stands there.
        limit: bytes of payload that a frame can have.
        decode: makes a message of a payload and the rest of its header, or raises WireError.
    """

    def __init__(
        self,
        header: struct.Struct = HEADER,
        limit: int = MAX_FRAME,
        decode: Callable[..., Any] | None = None,
    ) -> None:
        self._buffer = bytearray()
        self._header = header
        self._limit = limit
        self._decode = decode or _decode

    def feed(self, data: bytes) -> None:
        """Add bytes as they were read."""
        self._buffer += data

    def messages(self) -> Iterator[Any]:
        """Yield every complete message.

        Raises:
            WireError: the stream makes no sense; nothing more can be read from it.
        """
        buffer = self._buffer
        start = 0
        try:
            while len(buffer) - start >= self._header.size:
                length, *rest = self._header.unpack_from(buffer, start)
                if length > self._limit:
                    msg = f"a frame announces {length} bytes, more than the {self._limit} allowed"
                    raise WireError(msg)
                end = start + self._header.size + length
                if len(buffer) < end:
                    break
                payload = bytes(memoryview(buffer)[start + self._header.size : end])
                start = end
                yield self._decode(payload, *rest)
        finally:
            del buffer[:start]

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)


def _decode(payload: bytes) -> Any:
    try:
        message = _Unpickler(io.BytesIO(payload)).load()
        if not isinstance(message, enum.Enum):
            # a pickle may make an instance without its fields
            values.asdict(message)
    except Exception as error:
        msg = f"a frame of {len(payload)} bytes cannot be read: {error}"
        raise WireError(msg) from error
    return message


def _member(kind: Any, name: str) -> enum.Enum:
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        msg = f"{kind!r} has no members"
        raise pickle.UnpicklingError(msg)
    return kind[name]


def _is_ours(module: str) -> bool:
    return module.startswith(("fiber.model.", "fiber._agent.supervisor."))


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        # called for values that are not plain: refused here, so that the sender gets the error
        kind = value if isinstance(value, type) else type(value)
        if not _is_ours(kind.__module__) and value is not getattr:
            msg = f"{value!r} is no plain value"
            raise pickle.PicklingError(msg)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            # early releases of Python 3.11 pickle the members of enums with it
            return _member
        if _is_ours(module) and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        msg = f"{module}.{name} is no part of this protocol"
        raise pickle.UnpicklingError(msg)


_NOTHING: Mapping[str, str] = {}


@values.frozen
class SupervisorOptions:
    """Options of a supervisor: the first frame on its first channel."""

    #: the run it serves
    run_id: str
    #: folder for logs and the journal
    run_directory: str
    #: the process whose death ends everything; None for detached jobs
    master: int | None
    #: host name that statuses carry
    host: str
    #: arguments of the program, which modules read while they are imported; empty: as it was started with
    argv: tuple[str, ...] = ()
    #: modules of Fiber's that workers need, to import before the first fork
    essential: tuple[str, ...] = ()
    #: modules to import then that workers can do without
    preload: tuple[str, ...] = ()
    #: environment of the imports, and from then on; None: as it was started with
    environ: Mapping[str, str] | None = values.field(default=None, repr=False)
    #: seconds after the end of the last job until it ends by itself; None: never
    idle_exit: float | None = None
    #: True: outlives its starter and ends after its jobs, output goes to log files only
    detached: bool = False
    #: True to remove the run directory when the master has died
    remove_directory: bool = False
    #: last lines of output that a process's status carries
    tail: int = 20
    #: True to keep what jobs write in the run directory
    keeps_logs: bool = True
    #: factor of its durations
    time_scale: float = 1.0
    #: True to give forked processes a channel for jobs of their own
    offers_channels: bool = True

    @property
    def timing(self) -> Timing:
        """Durations of the run."""
        return Timing.at(self.time_scale)


# -- requests: each has a number, unique on its channel, and gets one reply with that number -------


@values.frozen
class Submit:
    """Start a job."""

    #: of this request
    number: int
    #: the job
    spec: JobSpec
    #: the submitter's environment, before the spec's changes
    environ: Mapping[str, str]
    #: the submitter's working directory, for a spec that names none
    cwd: str
    #: its attributes that a started program has, too; None: the supervisor's
    attributes: Attributes | None = None

    def __repr__(self) -> str:
        # an environment is full of secrets
        return f"Submit(number={self.number}, spec={self.spec})"


@values.frozen
class Signal:
    """Send a signal; processes that have ended are no error."""

    #: of this request
    number: int
    #: id of the job
    job_id: str
    #: position of one of its processes; None for all
    process: int | None
    #: the signal
    signum: int
    #: True for the whole process group, False for the process alone
    group: bool = False


@values.frozen
class Interrupt:
    """SIGINT to a job's process groups, unless it was sent before; see :attr:`Done.sent`."""

    #: of this request
    number: int
    #: id of the job
    job_id: str


@values.frozen
class Terminate:
    """SIGTERM to a job's processes, SIGKILL to their groups after ``grace`` seconds."""

    #: of this request
    number: int
    #: id of the job
    job_id: str
    #: seconds between the two
    grace: float


@values.frozen
class Kill:
    """SIGKILL to a job's process groups."""

    #: of this request
    number: int
    #: id of the job
    job_id: str


@values.frozen
class Preload:
    """Import more modules before the next fork; :attr:`Done.words` has the failures."""

    #: of this request
    number: int
    #: their names
    modules: tuple[str, ...]
    #: the environment to import them in, from which libraries read numbers of threads; None: as it is
    environ: Mapping[str, str] | None = values.field(default=None, repr=False)
    #: the folder to import them in; None: as it is
    cwd: str | None = None


@values.frozen
class Devices:
    """The devices of this host of some kinds, with the providers that know their environment."""

    #: of this request
    number: int
    #: all devices of these kinds
    devices: tuple[Device, ...]
    #: pickled providers by kind, unpickled in the children that get devices and nowhere else
    providers: Mapping[str, bytes]


@values.frozen
class EndAll:
    """Kill all jobs of this channel; the reply comes once they have ended."""

    #: of this request
    number: int


@values.frozen
class Shutdown:
    """Kill all jobs, reply, and end."""

    #: of this request
    number: int


Request = Submit | Signal | Interrupt | Terminate | Kill | Preload | Devices | EndAll | Shutdown


# -- replies ----------------------------------------------------------------------------------------


@values.frozen
class Accepted:
    """A job was taken on."""

    #: the request's
    number: int
    #: its id
    job_id: str
    #: its processes; none yet while it waits for a device
    pids: tuple[int, ...] = ()
    #: sentences that the submitter's user should see
    warnings: tuple[str, ...] = ()


class RefusalKind(enum.Enum):
    """Kind of a refusal."""

    #: it cannot be done
    SUBMIT = "submit"
    #: devices of these kinds were never offered, see :class:`Devices`; ``words`` has the kinds
    DEVICES = "devices"


@values.frozen
class Refused:
    """A request was not carried out."""

    #: the request's
    number: int
    #: the kind
    kind: RefusalKind
    #: the system's error message
    words: str


@values.frozen
class Done:
    """A request was carried out."""

    #: the request's
    number: int
    #: for :class:`Preload`: failures by module
    words: Mapping[str, str] = _NOTHING
    #: for :class:`Interrupt`: False where the job has ended, or had been sent SIGINT before
    sent: bool = False


Reply = Accepted | Refused | Done
#: the classes of replies
REPLIES = (Accepted, Refused, Done)


# -- messages without a request ---------------------------------------------------------------------


@values.frozen
class Ping:
    """Request for a sign of life."""


@values.frozen
class Hello:
    """A supervisor is up."""

    #: its process id; another one than was started where it is detached
    pid: int
    #: modules that could not be imported, and why
    failures: Mapping[str, str] = _NOTHING


@values.frozen
class Importing:
    """The import of a module begins."""

    #: its name
    module: str


@values.frozen
class Retired:
    """A supervisor that takes no more jobs from its master, and ends after those that it has.

    Imports have left threads in it, which a fork does not have, or have set up logging; or it has jobs, and is not
    to be kept from them by what the master wants imported.
    """

    #: modules that did, which each process is to import by itself
    modules: tuple[str, ...]


@values.frozen
class Pong:
    """A sign of life."""


@values.frozen
class StatusChanged:
    """A job of this channel changed."""

    #: which
    job_id: str
    #: its present status
    status: JobStatus


@values.frozen
class Output:
    """Output of processes, to be written to the parent's own output."""

    #: 1 or 2
    stream: int
    #: as they wrote it
    data: bytes


@values.frozen
class Notice:
    """Sentence for the user."""

    #: one sentence
    words: str


@values.frozen
class SecondsLeft:
    """The platform takes the place of a job away, and ends it in so many seconds."""

    #: from the moment of sending
    seconds: float


@values.frozen
class Exiting:
    """Last message of a supervisor that ends by itself; pending requests were not carried out."""


class Channel:
    """End of a channel: reads messages as they come, and queues those that the peer has not taken yet.

    Agents of backends use it with messages of their own.

    Args:
        descriptor: the socket, owned by ``descriptors``.
        owner: the process at the other end; None for the master.
        loop: event loop that watches the socket.
        descriptors: owner of the socket.
        on_message: called with the channel and each message.
        on_end: called once when the peer has closed its end, with "", or sent what
            cannot be decoded, with the error.
        on_room: called whenever the peer has taken some of what waits.
        encode: makes a frame of a message.
        decoder: makes messages of frames.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        owner: Owner,
        loop: Loop,
        descriptors: Descriptors,
        on_message: Callable[[Channel, Any], None],
        on_end: Callable[[Channel, str], None] = lambda *_: None,
        on_room: Callable[[], None] = lambda: None,
        encode: Callable[[Any], bytes] = encode,
        decoder: Decoder | None = None,
    ) -> None:
        self.owner = owner
        self._descriptor = descriptor
        self._descriptors = descriptors
        self._on_message = on_message
        self._on_end = on_end
        self._encode = encode
        self._decoder = decoder or Decoder()
        self._open = True
        self._stream = Buffered(
            loop,
            borrowed_socket(descriptor),
            on_data=self._receive,
            on_end=lambda _: self._end(""),
            on_room=on_room,
        )

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    @property
    def is_open(self) -> bool:
        """False once either end was closed."""
        return self._open

    @property
    def waiting(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._stream.waiting

    @property
    def is_idle(self) -> bool:
        """True where nothing is half read and nothing waits to be read or written."""
        self._stream.receive()
        return not (self._stream.waiting or self._decoder.pending)

    def send(self, *messages: object) -> None:
        """Queue messages; they are dropped where the peer has gone."""
        if self._open and messages:
            self._stream.write([self._encode(message) for message in messages])

    def close(self) -> None:
        """Close this end. Idempotent."""
        if self._open:
            self._open = False
            self._descriptors.release(self._descriptor)
            self._stream.close()

    def flush(self, timeout: float) -> None:
        """Write what is queued; give up when the peer takes nothing for ``timeout`` seconds."""
        poll = select.poll()
        while self._open and self._stream.waiting:
            poll.register(self._descriptor, select.POLLOUT)
            if not poll.poll(timeout * 1000):
                return
            self._stream.flush()

    def _receive(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            for message in self._decoder.messages():
                self._on_message(self, message)
                if not self._open:
                    return
        except WireError as error:
            self._end(str(error))

    def _end(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_end(self, reason)
