"""Rings whose ranks run a command: ``fiber ring run`` and the other words of ``fiber ring``.

A ring of commands is a :class:`~fiber._ring.ring.Ring` whose function runs a child process. The
process that runs it, in the foreground or detached, is its *owner*. Other shells of the same user
find the ring by name in the state folder, where a :class:`Record` is a folder for each ring until it is deleted,
and reach the owner at its :class:`ControlServer`: one command a connection, a line of text; JSON back.
:func:`run` is the owner's part, after :func:`detach` where it is left in the background, and :class:`RankCommand` the ranks'.

Invariants:

* A record is claimed by one owner at a time; its files are replaced whole, never edited. Counters
  are kept across programs and survive the records.
* A status is taken from the owner while that answers, from the file afterwards; a ring whose owner
  was killed has failed, for its members end with their leases.
* Socket and folders may be entered by their user alone.

Threads, all in the owner: ``fiber-ring-control`` answers control commands, ``fiber-ring-lines``
prints and records output; the main thread waits for the ring and writes its status.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._base import light_values, values
from fiber._base.threads import ending_signals
from fiber._ring.forwarding import AcceptThread, private_listener
from fiber._ring.model import RingCounters, RingError, RingPhase, RingStatus, RingTiming
from fiber.backend_parts.liveness import (
    Claim,
    Liveness,
    Owner,
    liveness_of,
    owner_of,
    remove_claimed,
)
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._ring.ring import Ring

_MAX_COMMAND = 4096


class ControlServer:
    """Server at a Unix socket in a folder that only its user may enter.

    Args:
        path: of the socket.
        handlers: function of each command, by its first word; the other words are its arguments,
            and its result is the answer.
        timeout: seconds for a client to send its command and to take the answer.
    """

    def __init__(
        self, path: str, handlers: Mapping[str, Callable[..., Any]], timeout: float
    ) -> None:
        self._path, self._handlers, self._timeout = path, handlers, timeout
        # one connection after another, for handlers return at once
        self._accepting = AcceptThread(
            private_listener(path), self._serve, name="fiber-ring-control"
        )

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._accepting.close()
        Path(self._path).unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(self._timeout)
            command = connection.recv(_MAX_COMMAND).decode(errors="replace").strip()
            connection.sendall(json.dumps(self._answer(command)).encode())

    def _answer(self, command: str) -> dict[str, Any]:
        word, _, rest = command.partition(" ")
        handler = self._handlers.get(word)
        if handler is None:
            return {"error": f"a ring does not know what {word!r} is"}
        try:
            return {"answer": handler(*rest.split())}
        except (FiberError, ValueError, TypeError) as error:
            return {"error": str(error)}


def request(path: str, command: str, timeout: float) -> Any:
    """Send a command to the owner of a ring, and return its answer.

    Args:
        path: of the control socket.
        command: its name and arguments, with spaces between them.
        timeout: seconds for the answer.

    Raises:
        FiberError: the owner does not answer, or refused the command.
    """
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(command.encode() + b"\n")
            while piece := connection.recv(1 << 16):
                data += piece
    except OSError as error:
        msg = f"the ring does not answer ({error}); has it ended just now?"
        raise FiberError(msg) from error
    return read_answer(data)


def read_answer(data: bytes) -> Any:
    """Read what the owner of a ring answered.

    Raises:
        FiberError: it refused the command, or was cut off in the midst of its answer.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        msg = f"the ring does not answer ({error}); has it ended just now?"
        raise FiberError(msg) from error
    if not isinstance(found, dict) or "answer" not in found:
        why = found.get("error") if isinstance(found, dict) else None
        raise FiberError(str(why or "the ring's answer makes no sense"))
    return found["answer"]


_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_METADATA, _STATUS, _LOG, _ERRORS = "ring.json", "status.json", "log", "errors"
#: claims of this process on the rings that it owns
_claims: dict[Path, Claim] = {}


@values.frozen
class Record:
    """The folder of a ring.

    Its ``ring.json`` has ``argv``, ``ttl``, ``pid``, ``backend`` and ``door``, the control socket's
    path; ``status.json`` the last status.
    """

    path: Path

    @property
    def name(self) -> str:
        """Name of the ring."""
        return self.path.name

    @property
    def control_path(self) -> str:
        """Path of the control socket; empty before the ring has started."""
        return str(self.metadata().get("door", ""))

    @property
    def log(self) -> Path:
        """File of the ranks' output; lines of rank, host and text with tabs between them."""
        return self.path / _LOG

    @property
    def errors(self) -> Path:
        """File of a detached owner's standard error."""
        return self.path / _ERRORS

    @property
    def liveness(self) -> Liveness:
        """True while the process that runs the ring (in the foreground or detached) is alive."""
        return liveness_of(self.path)

    @property
    def owner(self) -> Owner | None:
        """The process that runs the ring, as it was recorded."""
        return owner_of(self.path)

    @property
    def is_expired(self) -> bool:
        """True once the ring has been over for longer than its ``ttl``."""
        ttl, ended = self.metadata().get("ttl"), self.status().get("completion_time")
        return ttl is not None and ended is not None and time.time() >= ended + ttl

    def metadata(self) -> dict[str, Any]:
        """Return the contents of ``ring.json``."""
        return _read(self.path / _METADATA)

    def status(self) -> dict[str, Any]:
        """Return the last status that was written."""
        return _read(self.path / _STATUS)

    def write(self, status: dict[str, Any]) -> None:
        """Write a status atomically; without effect on a deleted record."""
        with contextlib.suppress(FileNotFoundError):
            _write(self.path / _STATUS, status)

    def remove(self) -> None:
        """Delete the record."""
        remove_claimed(self.path)
        claim = _claims.pop(self.path, None)
        if claim is not None:
            claim.release()

    def take_ownership(self, **more: Any) -> None:
        """Make this process the owner, and add ``more`` to ``ring.json``."""
        if self.path in _claims:
            # claimed by this process, or by the one that it was forked from
            _claims[self.path].rewrite()
        else:
            _claims[self.path] = Claim(self.path)
        _write(self.path / _METADATA, {**self.metadata(), "pid": os.getpid(), **more})

    @classmethod
    def begin(cls, name: str, argv: tuple[str, ...], ttl: float | None = None) -> Record:
        """Create the record of a new ring, owned by this process.

        Args:
            name: of the ring.
            argv: command of its ranks.
            ttl: seconds after its end for which the record is kept; None until it is deleted.

        Raises:
            FiberError: the name is invalid, or a record of that name exists.
        """
        if not _NAME.fullmatch(name):
            msg = f"{name!r} is no name for a ring: write small letters, digits, dots and hyphens"
            raise FiberError(msg)
        record = cls(_root() / name)
        if record.is_expired:
            record.remove()
        try:
            record.path.mkdir(mode=0o700)
        except FileExistsError:
            msg = f"a ring {name!r} is there already; fiber ring delete {name}, or name another one"
            raise FiberError(msg) from None
        former = _claims.pop(record.path, None)
        if former is not None:
            # claim of a record that another process has deleted
            former.release()
        record.take_ownership(argv=list(argv), ttl=ttl)
        return record


def records() -> Iterator[Record]:
    """Yield all records by name; expired ones are deleted."""
    for path in sorted(_root().iterdir()):
        record = Record(path)
        if record.is_expired:
            record.remove()
        elif (path / _METADATA).exists():
            yield record


def find(name: str) -> Record:
    """Return the record of a ring.

    Raises:
        FiberError: no ring has that name; the text has the names of all.
    """
    for record in records():
        if record.name == name:
            return record
    known = ", ".join(record.name for record in records()) or "none"
    msg = f"no ring is called {name!r}; there are: {known}"
    raise FiberError(msg)


def to_json(status: RingStatus) -> dict[str, Any]:
    """Convert a status to values that JSON has."""
    if status.failure is not None:
        # an exception has no form in JSON
        status = values.evolve(status, failure=values.evolve(status.failure, error=None))
    found: dict[str, Any] = light_values.plain(status)
    return found


def _root() -> Path:
    root = state_folder() / "rings"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root


def state_folder() -> Path:
    """Return the folder of this user's state of Fiber."""
    import platformdirs

    return platformdirs.user_state_path("fiber")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, data: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, default=str))
    fresh.replace(path)


_OWNER_LOST = "OwnerLost"


def current_status(record: Record, timing: RingTiming) -> dict[str, Any]:
    """Return the status of a ring as values that JSON has, with ``name`` and ``backend``.

    It comes from the owner if that answers in time, else from the record.
    """
    metadata = record.metadata()
    more = {"name": record.name, "backend": metadata.get("backend", "")}
    liveness = record.liveness
    found = record.status()
    if liveness is not Liveness.DEAD and not is_over(found):
        try:
            found = request(record.control_path, "status", timing.request)
        except FiberError:
            # the owner is starting or ending, or on a host whose sockets are not visible here
            found = record.status()
    elif not is_over(found):
        found = _owner_lost_status(found)
        record.write(found)
    return {"phase": "starting", **found, **more}


def is_over(status: dict[str, Any]) -> bool:
    """Return True for a final status."""
    return status.get("phase") in ("succeeded", "failed")


def send_command(record: Record, command: str, timing: RingTiming) -> None:
    """Send a command to a ring's owner.

    Args:
        record: of the ring.
        command: its name and arguments, as :class:`~fiber._ring.command_rings.ControlServer`
            has them.
        timing: has the seconds for the answer.

    Raises:
        FiberError: the ring is over, or its owner refused or did not answer.
    """
    if is_over(current_status(record, timing)):
        msg = f"{record.name} has ended; fiber ring status {record.name} says how"
        raise FiberError(msg)
    try:
        request(record.control_path, command, timing.request)
    except FiberError as error:
        owner = record.owner
        if record.liveness is not Liveness.UNKNOWN or owner is None:
            raise
        msg = (
            f"{record.name} belongs to process {owner.pid} of {owner.host}, and nothing seen from here "
            f"proves that it has ended; use fiber ring there, or remove {record.path}"
        )
        raise FiberError(msg) from error


def _owner_lost_status(status: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a ring whose owner was killed: failed, from its last one."""
    now = time.time()
    why = "the process that owned it was killed; its members end with their leases"
    failed = {"kind": "Failed", "is_true": True, "reason": _OWNER_LOST, "message": why, "time": now}
    ended = {"is_true": False, "reason": _OWNER_LOST, "message": why, "time": now}
    conditions = [
        {**one, **ended} if one["is_true"] and one["kind"] != "Created" else one
        for one in status.get("conditions", ())
    ]
    return {
        **status,
        "phase": "failed",
        "up": 0,
        "starting": 0,
        "completion_time": now,
        "failure": {"reason": _OWNER_LOST, "message": why},
        "conditions": [*conditions, failed],
        "events": [
            *status.get("events", ()),
            {"time": now, "reason": _OWNER_LOST, "message": why},
        ],
    }


_FILE = "rings.json"
#: help text of each ring's gauges, by key of its status
_GAUGES = {
    "wanted": "members that it wants",
    "starting": "members that are being started",
    "up": "members that are up",
    "restarts": "times that all ranks were started again since one failed",
    "changes": "times that members came or went while ranks went on",
    "start_time": "when it was started or resumed, in seconds since the epoch",
    "completion_time": "when it was over, in seconds since the epoch",
}


def add_counts(**more: int) -> None:
    """Add to the user's counters ``created``, ``succeeded``, ``failed`` and ``restarts``."""
    path = state_folder() / _FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = _parsed(file.read() if not file.seek(0) else "")
        known = values.asdict(found)
        file.truncate(0)
        file.write(json.dumps({name: known[name] + more.get(name, 0) for name in known}))


def totals() -> RingCounters:
    """Return the user's counters."""
    try:
        return _parsed((state_folder() / _FILE).read_text())
    except OSError:
        return RingCounters()


def to_prometheus(rings: Iterable[Mapping[str, Any]]) -> str:
    """Return counters and the status of each ring in Prometheus' text format.

    Args:
        rings: statuses as :func:`current_status` returns them.
    """
    rings = list(rings)
    lines = [totals().to_prometheus().rstrip("\n")]
    lines += ["# HELP fiber_ring_info What is kept of a ring.", "# TYPE fiber_ring_info gauge"]
    for ring in rings:
        labels = {name: str(ring.get(name, "")) for name in ("name", "backend", "phase")}
        lines.append(f"fiber_ring_info{_labels(labels)} 1")
    for key, text in _GAUGES.items():
        metric = f"fiber_ring_{key}" + ("_seconds" if key.endswith("_time") else "")
        lines += [f"# HELP {metric} {text[0].upper()}{text[1:]}.", f"# TYPE {metric} gauge"]
        lines += [
            f"{metric}{_labels({'name': str(ring.get('name', ''))})} {ring[key]}"
            for ring in rings
            if ring.get(key) is not None
        ]
    return "\n".join(lines) + "\n"


def _parsed(text: str) -> RingCounters:
    try:
        found = json.loads(text)
    except ValueError:
        return RingCounters()
    return RingCounters(**{name: int(found.get(name, 0)) for name in values.asdict(RingCounters())})


def _labels(found: Mapping[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(text)}"' for name, text in found.items()) + "}"


@values.frozen
class OutputLine:
    """A line of output of a rank's command."""

    rank: int
    host: str
    text: str


@values.frozen
class CommandBegan:
    """Start of a rank's command."""

    rank: int
    #: differs for each command; a rank has one after another when it is started again
    command: str


@values.frozen
class CommandEnded:
    """End of a rank's command."""

    rank: int
    #: that of its :class:`CommandBegan`
    command: str
    #: exit code, or minus the signal's number
    code: int


@values.frozen
class RankCommand:
    """The function of the ring's members: runs a command, which has its rank in the environment."""

    #: program and arguments
    argv: tuple[str, ...]
    #: receives :class:`CommandBegan`, :class:`OutputLine` and :class:`CommandEnded`
    queue: Any

    def __call__(self, rank: int, size: int) -> None:
        """Run the command, and exit with its exit code."""
        host, command = socket.gethostname(), secrets.token_hex(8)
        self.queue.put(CommandBegan(rank, command))
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "PYTHONUNBUFFERED": "1",
            **os.environ,
        }
        # in the job's process group, so that it ends with the job
        with subprocess.Popen(
            self.argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            with contextlib.suppress(ValueError):
                # a ring that is ended or restarted ends its commands
                signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            assert process.stdout is not None
            for line in process.stdout:
                self.queue.put(OutputLine(rank, host, line.rstrip("\n")))
        self.queue.put(CommandEnded(rank, command, process.returncode))
        if process.returncode:
            code = process.returncode
            raise SystemExit(128 - code if code < 0 else code)


def run(
    record: Record,
    argv: tuple[str, ...],
    workers: int,
    *,
    on_start: Callable[[], None] = lambda: None,
    **options: Any,
) -> int:
    """Run a command in every rank of a ring; returns the exit code of the first that failed.

    Args:
        record: of the ring.
        argv: the command.
        workers: number of jobs.
        on_start: called once the ring has been started.
        **options: of :class:`~fiber._ring.ring.Ring`.

    Raises:
        FiberError: the ring cannot be started.
    """
    # whoever looks at rings needs neither these nor what they import
    from fiber._ring.ring import Ring
    from fiber._runtime import runtime
    from fiber.queues import SimpleQueue

    current = runtime.current()
    control_path = str(current.directory / "ring.sock")
    record.take_ownership(backend=current.info.name, door=control_path)
    timing = RingTiming.at(current.timing.scale)
    queue: Any = SimpleQueue()
    ring = Ring(workers, RankCommand(argv, queue), name=record.name, **options)
    codes: dict[int, int] = {}

    def status() -> dict[str, Any]:
        found = to_json(ring.status())
        return {**found, "codes": {str(rank): codes[rank] for rank in sorted(codes)}}

    ring.start()
    add_counts(created=1)
    reader = threading.Thread(
        target=_read_output, args=(queue, record, codes), name="fiber-ring-lines", daemon=True
    )
    reader.start()
    received: list[int] = []

    def handle(number: int) -> None:
        received.append(number)
        threading.Thread(target=ring.terminate, name="fiber-ring-end").start()

    handlers: dict[str, Callable[..., Any]] = {
        "status": status,
        "suspend": ring.suspend,
        "resume": ring.resume,
        "resize": lambda jobs: ring.resize(int(jobs)),
        "terminate": ring.terminate,
    }
    try:
        server = ControlServer(control_path, handlers, timing.request)
        with contextlib.closing(server), ending_signals(handle):
            record.write(status())
            on_start()
            return _wait(ring, record, status, received, timing.status)
    finally:
        queue.put(None)
        reader.join()
        record.write(status())
        _count(ring.status())


def _count(status: RingStatus) -> None:
    """Add the outcome of a ring to the user's counters."""
    add_counts(
        succeeded=int(status.phase is RingPhase.SUCCEEDED),
        failed=int(status.phase is not RingPhase.SUCCEEDED),
        restarts=status.restarts,
    )


def _wait(ring: Ring, record: Record, status: Any, received: list[int], interval: float) -> int:
    written: RingStatus | None = None
    while True:
        now = ring.status()
        if now != written:
            record.write(status())
            written = now
        try:
            if ring.join(interval) is not None:
                return 0
        except RingError as error:
            if received:
                return 128 + received[0]
            sys.stderr.write(f"fiber: {error}\n")
            code = error.failure.exit_code
            return 1 if code is None else 128 - code if code < 0 else code or 1


def _read_output(queue: Any, record: Record, codes: dict[int, int]) -> None:
    running: dict[int, str] = {}
    with record.log.open("a", buffering=1, errors="backslashreplace") as log:
        while (item := queue.get()) is not None:
            if isinstance(item, CommandBegan):
                running[item.rank] = item.command
                codes.pop(item.rank, None)
            elif isinstance(item, CommandEnded):
                # one that is being ended may end after its successor began
                if running.get(item.rank) == item.command:
                    codes[item.rank] = item.code
            elif isinstance(item, OutputLine):
                log.write(f"{item.rank}\t{item.host}\t{item.text}\n")
                # the reader of our output may have gone
                with contextlib.suppress(OSError):
                    sys.stdout.write(f"[{item.rank}@{item.host}] {item.text}\n")
                    sys.stdout.flush()


_STARTED = b"+"


def detach(record: Record) -> Callable[[], None] | None:
    """Fork a detached owner of the ring; called before any thread or connection exists.

    Args:
        record: of the ring; the owner's standard error goes to its folder.

    Returns:
        in the owner, a function that it must call once the ring has been started; in the calling
        process None, once it was called.

    Raises:
        FiberError: the ring was not started; the text has the owner's standard error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        with open(read_end, "rb") as answer:
            has_started = answer.read(1) == _STARTED
        if not has_started:
            _, status = os.waitpid(pid, 0)
            text = record.errors.read_text(errors="replace").strip() or f"it ended with {status}"
            record.remove()
            msg = f"{record.name} was not started: {text.removeprefix('fiber: ')}"
            raise FiberError(msg)
        return None
    os.close(read_end)
    # leave the terminal's process group, and with it the terminal's signals
    os.setsid()
    _redirect(record)
    record.take_ownership()

    def notify_started() -> None:
        os.write(write_end, _STARTED)
        os.close(write_end)

    return notify_started


def _redirect(record: Record) -> None:
    """Redirect standard input and output to the null device, and errors to the record."""
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(record.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((null, 0), (null, 1), (errors, 2)):
        os.dup2(number, target)
    os.close(null)
    os.close(errors)
