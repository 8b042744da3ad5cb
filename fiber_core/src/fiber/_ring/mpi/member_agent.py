"""Member agent: process on each member and the launcher that runs commands there.

On the launcher it has a command socket, at which agents of mpirun request commands on members. An agent sends its
three standard streams as descriptors with a line that has the length of the header; the header, host and command
with a NUL between them; and then signal numbers, a line each. The answer is ``exit <code>`` or ``error <text>``.
Apart from ``run``, its other end, which runs where the run was started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from fiber._agent import rundir
from fiber._agent.supervisor.kernel import adopt_orphans
from fiber._ring.forwarding import AcceptThread, private_listener
from fiber._ring.member import WorkerProcess
from fiber._ring.model import MpiTiming
from fiber._ring.mpi import agent, messages
from fiber._ring.mpi.ranks import FOLDER, MEMBER, RankRegistry
from fiber._ring.protocol import Leave, Probe
from fiber._ring.reachability import Presence, probe
from fiber._runtime import runtime
from fiber.backend_parts.standard_streams import read_until, write_all

_CHUNK_SIZE = 64 * 1024


class Execution(Protocol):
    """Interface of a running command, on this host or another."""

    def feed(self, data: bytes) -> None:
        """Write to its standard input; empty data closes it."""

    def signal(self, number: int) -> None:
        """Send a signal to its processes."""


class Command:
    """A command on this host and the threads that read its output; thread-safe.

    Args:
        argv: program and arguments.
        env: the whole environment.
        out: called with 1 or 2 and a piece of output.
        ended: called once with the exit code, or minus the signal, after all output.
        linger: seconds after its end for which its descendants may keep its output open.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        out: Callable[[int, bytes], None],
        ended: Callable[[int], None],
        linger: float,
    ) -> None:
        self._out, self._ended, self._linger = out, ended, linger
        self._process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # a process group of its own, for signals
            start_new_session=True,
        )
        self._input_lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self._waiter: threading.Thread | None = None

    def begin(self) -> None:
        """Start the threads that call ``out`` and ``ended``."""
        streams = ((1, self._process.stdout), (2, self._process.stderr))
        self._readers = [self._start(self._read, number, stream) for number, stream in streams]
        self._waiter = self._start(self._wait)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._process.pid

    def feed(self, data: bytes) -> None:
        """Write to its standard input; empty data closes it."""
        stream = self._process.stdin
        assert stream is not None
        # a command that has ended or closed its input reads no more
        with self._input_lock, contextlib.suppress(OSError, ValueError):
            if not data:
                stream.close()
            while data:
                data = data[stream.write(data) :]

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""
        # the number of a group is not used again until its first process is waited for
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process group."""
        self.signal(signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Wait until ``ended`` was called."""
        if self._waiter is not None:
            self._waiter.join(timeout)

    def _start(self, target: Callable[..., None], *args: object) -> threading.Thread:
        name = f"fiber-command-{self._process.pid}"
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def _read(self, number: int, stream: IO[bytes]) -> None:
        while data := os.read(stream.fileno(), _CHUNK_SIZE):
            self._out(number, data)

    def _wait(self) -> None:
        code = self._process.wait()
        self.feed(b"")
        for reader in self._readers:
            reader.join(self._linger)
        self._ended(code)
        # later output of lingering descendants is discarded
        for stream, reader in zip(
            (self._process.stdout, self._process.stderr), self._readers, strict=True
        ):
            reader.join()
            assert stream is not None
            stream.close()


_CLONE_NEWUTS = 0x04000000


if sys.platform == "linux":

    def set_hostname(name: str) -> bool:
        """Set the host name of this thread and the processes that it starts from now on.

        Returns:
            False where the system or its user does not allow it; nothing has changed then.
        """
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        encoded = name.encode()
        if libc.unshare(_CLONE_NEWUTS) != 0:
            return False
        return bool(libc.sethostname(encoded, len(encoded)) == 0)

else:

    def set_hostname(name: str) -> bool:  # noqa: ARG001 - as above
        """Return False: this system has no UTS namespaces."""
        return False


#: no header of an agent is longer: arguments are not
_MAX_HEADER = 4 * 1024 * 1024


class AgentCall:
    """Request of one agent, which waits for the end of its command.

    Args:
        connection: to the agent.
        streams: descriptors of its standard streams.
    """

    def __init__(self, connection: socket.socket, streams: list[int]) -> None:
        self._connection = connection
        self._streams = streams
        self._lock = threading.Lock()
        self._over = False
        self._writing = threading.Lock()
        self._closed = False
        # wakes the thread that reads the agent's standard input
        self._ending, self._end = os.pipe()

    def out(self, number: int, data: bytes) -> None:
        """Write to the agent's standard output or errors."""
        with self._writing, contextlib.suppress(OSError):
            # their reader may have gone, and so may the agent
            if not self._closed:
                write_all(self._streams[number], data)

    def ended(self, code: int) -> None:
        """Answer with the command's exit code, or minus its signal."""
        self._answer(f"exit {code}\n")

    def refuse(self, text: str) -> None:
        """Answer with an error: the command cannot be run, or is lost."""
        self._answer(f"error {text}\n")

    def _answer(self, text: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        os.write(self._end, b"x")
        with contextlib.suppress(OSError):
            self._connection.sendall(text.encode())
            self._connection.shutdown(socket.SHUT_RDWR)

    def carry(self, execution: Execution) -> None:
        """Forward the agent's input and signals to the command, until one of the two ends."""
        what = self._streams[0], self._ending, execution.feed
        reader = threading.Thread(
            target=read_until, args=what, name="fiber-agent-input", daemon=True
        )
        reader.start()
        rest = b""
        # ValueError: a line that is no number is no agent's, and ends like one that hangs up
        with contextlib.suppress(OSError, ValueError):
            while data := self._connection.recv(4096):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    execution.signal(int(line))
        with self._lock:
            gone, self._over = not self._over, True
        if gone:
            # the agent was killed, so its command is killed as well
            os.write(self._end, b"x")
            execution.signal(9)
        reader.join()

    def close(self) -> None:
        """Close the connection and all descriptors."""
        with self._writing:
            self._closed = True
            for descriptor in (*self._streams, self._ending, self._end):
                os.close(descriptor)
        self._connection.close()


class CommandSocket:
    """Listening socket for agents, with a thread for each of them.

    Args:
        folder: a folder that only this user may enter.
        begin: starts a command on a host for an agent's call; raises LookupError for unknown hosts.
    """

    def __init__(self, folder: Path, begin: Callable[[str, str, AgentCall], Execution]) -> None:
        #: path of the socket
        self.path = str(folder / "door")
        self._begin = begin
        self._accepting = AcceptThread(
            private_listener(self.path),
            self._serve,
            name="fiber-command-socket",
            thread_per_connection=True,
        )

    def close(self) -> None:
        """Stop listening; open calls go on until their commands end."""
        self._accepting.close()
        Path(self.path).unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        try:
            header, streams = _read_header(connection)
        except (OSError, ValueError):
            # the client is no agent
            connection.close()
            return
        call = AgentCall(connection, streams)
        host, _, command = header.decode("utf-8", "surrogateescape").partition("\0")
        try:
            execution = self._begin(host, command, call)
        except LookupError as error:
            call.refuse(str(error.args[0]))
        else:
            call.carry(execution)
        call.close()


def _read_header(connection: socket.socket) -> tuple[bytes, list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, _CHUNK_SIZE, 3)
    try:
        if len(streams) != 3:
            msg = "an agent sends its three streams first"
            raise ValueError(msg)
        while b"\n" not in data:
            data += _receive(connection)
        length, _, data = data.partition(b"\n")
        if not 0 <= int(length) <= _MAX_HEADER:
            msg = f"a header of {int(length)} bytes is none"
            raise ValueError(msg)
        while len(data) < int(length):
            data += _receive(connection)
    except (OSError, ValueError):
        for descriptor in streams:
            os.close(descriptor)
        raise
    return data, streams


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(_CHUNK_SIZE)
    if not data:
        msg = "it ended in the middle"
        raise ValueError(msg)
    return data


#: name of the agent's program in the launcher's folder
AGENT = "rsh"


class AgentProcess(WorkerProcess):
    """The job of a worker: an agent for each of its members.

    Args:
        names: of its members, as ``mpirun`` knows them.
        ends: their ends of pipes to the controller, in the same order.
        timing: durations of the run.
    """

    def __init__(self, names: tuple[str, ...], ends: list[Any], timing: MpiTiming) -> None:
        super().__init__(names[-1], ends)
        self._names, self._timing = names, timing

    def serve(self, end: Any, slot: int) -> None:
        """Be the agent of one member until the controller says so, or is gone."""
        # what a daemon leaves behind is ended with the agent
        adopt_orphans()
        folder = rundir.make_folder(runtime.current().directory, "fm-")
        member = _MemberAgent(end, self._names[slot], folder, self._timing)
        try:
            member.run()
        finally:
            member.close()
            shutil.rmtree(folder, ignore_errors=True)


class _MemberAgent:
    def __init__(self, connection: Any, name: str, folder: Path, timing: MpiTiming) -> None:
        self._timing = timing
        self._connection = connection
        self._folder = folder
        self._presence = Presence(lambda host: socket.create_server((host, 0), backlog=128))
        self._ranks = RankRegistry(folder, self._send)
        self._command_socket: CommandSocket | None = None
        self._commands: dict[int, Command] = {}
        # agents' calls, by a number that is negative: the controller's own are positive
        self._calls: dict[int, AgentCall] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._environ = {**os.environ, FOLDER: str(folder), MEMBER: name, "TMPDIR": str(folder)}
        self._handlers: dict[type, Callable[[Any], None]] = {
            Probe: self._dial,
            messages.BecomeLauncher: self._lead,
            # by the thread that starts programs
            messages.SetHostname: lambda _: self._send(messages.HostnameSet(set_hostname(name))),
            messages.Run: self._run,
            messages.Input: self._input,
            messages.Signal: self._signal,
            messages.ReleaseRanks: lambda go: self._ranks.release(go.count),
            messages.Output: lambda out: self._with_call(
                out, lambda c: c.out(out.stream, out.data)
            ),
            messages.Ended: lambda end: self._with_call(end, lambda c: c.ended(end.code)),
            messages.Refused: lambda no: self._with_call(no, lambda c: c.refuse(no.why)),
        }

    def run(self) -> None:
        """Say that it is up, and do what it is told."""
        self._send(self._presence.hello(str(self._folder)))
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                # who started us is gone, and so is the run
                return
            if isinstance(message, Leave):
                return
            if not isinstance(message, Probe):
                # the controller goes on once all members have dialled each other
                self._presence.close()
            self._handlers[type(message)](message)

    def close(self) -> None:
        """End what runs, and release everything."""
        with self._lock:
            commands = list(self._commands.values())
        for command in commands:
            command.kill()
        _end_descendants()
        for call in list(self._calls.values()):
            call.refuse("the run has ended")
        if self._command_socket is not None:
            self._command_socket.close()
        self._ranks.close()
        self._presence.close()
        for command in commands:
            command.join(self._timing.linger)

    def _send(self, message: Any) -> None:
        # when the controller is gone, so are we
        with contextlib.suppress(OSError, EOFError):
            self._connection.send(message)

    # -- what it is told

    def _dial(self, message: Probe) -> None:
        def ask() -> None:
            # all answers count: a network is chosen that all have
            self._send(probe(message.targets, self._timing.dial, self._timing.dial))

        threading.Thread(target=ask, name="fiber-dialling", daemon=True).start()

    def _lead(self, message: messages.BecomeLauncher) -> None:
        self._command_socket = CommandSocket(self._folder, self._asked)
        # a program of one word, for not every mpirun takes more; it imports nothing of ours but
        # itself, and nothing that the environment names
        script = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{agent.__file__}" "$@"\n'
        for name, text in {**message.files, AGENT: script}.items():
            path = self._folder / name
            path.write_text(text)
            path.chmod(0o700 if name == AGENT or name.endswith(".sh") else 0o600)
        self._send(messages.LauncherReady(str(self._folder)))

    def _run(self, message: messages.Run) -> None:
        given = {
            name: value
            for name, value in message.env.items()
            if name not in message.overridable or name not in os.environ
        }
        environ = {
            **(self._environ if self._command_socket is None else self._of_launcher()),
            **given,
        }
        program = Path(message.argv[0])
        if program.is_absolute():
            # its helpers lie beside it
            environ["PATH"] = os.pathsep.join(
                [str(program.parent), environ.get("PATH", os.defpath)]
            )
        call = message.call
        try:
            command = Command(
                message.argv,
                env=environ,
                out=lambda stream, data: self._send(messages.Output(call, stream, data)),
                ended=lambda code: self._ended(call, code),
                linger=self._timing.linger,
            )
        except OSError as error:
            text = f"{message.argv[0]} cannot be run: {error.strerror}"
            self._send(messages.Refused(call, text))
            return
        with self._lock:
            self._commands[call] = command
        command.begin()

    def _of_launcher(self) -> dict[str, str]:
        """What a launcher's programs get: the door, and nothing that makes a rank a member's."""
        assert self._command_socket is not None
        return {**os.environ, agent.SOCKET: self._command_socket.path}

    def _ended(self, call: int, code: int) -> None:
        with self._lock:
            self._commands.pop(call, None)
        self._send(messages.Ended(call, code))

    def _input(self, message: messages.Input) -> None:
        with self._lock:
            command = self._commands.get(message.call)
        if command is not None:
            command.feed(message.data)

    def _signal(self, message: messages.Signal) -> None:
        with self._lock:
            command = self._commands.get(message.call)
        if command is not None:
            command.signal(message.number)

    # -- agents of the launcher

    def _asked(self, host: str, command: str, call: AgentCall) -> Execution:
        with self._lock:
            self._number -= 1
            number = self._number
            self._calls[number] = call
        self._send(messages.CommandRequested(number, host, command))
        return _Elsewhere(number, self._send)

    def _with_call(
        self,
        message: messages.Output | messages.Ended | messages.Refused,
        do: Callable[[AgentCall], None],
    ) -> None:
        with self._lock:
            last = not isinstance(message, messages.Output)
            call = self._calls.pop(message.call, None) if last else self._calls.get(message.call)
        if call is not None:
            do(call)


class _Elsewhere:
    """An agent's command on a member."""

    def __init__(self, call: int, send: Callable[[Any], None]) -> None:
        self._call, self._send = call, send

    def feed(self, data: bytes) -> None:
        self._send(messages.Input(self._call, data))

    def signal(self, number: int) -> None:
        self._send(messages.Signal(self._call, number))


def _end_descendants() -> None:
    """SIGKILL to all that this process's commands left, in sessions of their own too."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
