"""Member agent: process on each member and the launcher that runs commands there.

Apart from ``protocol``, its other end, which runs where the run was started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fiber._agent import rundir
from fiber._agent.supervisor.kernel import adopt_orphans
from fiber._ring.member import WorkerProcess
from fiber._ring.mpi import agent, messages
from fiber._ring.mpi.command_socket import AgentCall, CommandSocket
from fiber._ring.mpi.ranks import FOLDER, MEMBER, RankRegistry
from fiber._ring.mpi.streams import Command, Execution, set_hostname
from fiber._ring.protocol import Hello, Leave, Probe
from fiber._ring.reachability import Presence, probe
from fiber._ring.timing import MpiTiming
from fiber._runtime import runtime

__all__ = ["AGENT", "AgentProcess"]

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

    def _send(self, message: messages.FromMember | Hello) -> None:
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

    def __init__(self, call: int, send: Callable[[messages.FromMember], None]) -> None:
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
