"""What runs on a host over its connection: the way to its agent, and programs by themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import attrs
import paramiko

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.archive import agent_archive, loader_source
from fiber_ssh.command import MARK, command_line, python_line
from fiber_ssh.dial import DROPPED

__all__ = ["About", "Answer", "open_agent", "run", "words_of"]

_MOST = 256 * 1024


@attrs.frozen(kw_only=True)
class About:
    """What a host's Python says of itself."""

    #: its version
    python: tuple[int, ...]
    #: its path
    executable: str
    #: version of fiber-core there, None where there is none
    fiber: str | None
    #: the host's own name
    hostname: str
    #: the agent's code and folder there
    archive: str
    root: str
    #: how many CPUs it has
    cpus: int
    #: its memory in MB
    memory: int
    #: the address and the port at which it was reached, as it sees them; and ours, as it sees that
    door: tuple[str, int] | None
    ours: str | None

    @property
    def address(self) -> str | None:
        """The address at which it was reached."""
        return None if self.door is None else self.door[0]

    @classmethod
    def of(cls, said: dict[str, Any]) -> About:
        """What it said."""
        seen = str(said.get("seen") or "").split()
        return cls(
            python=tuple(said["python"]),
            executable=str(said["executable"]),
            fiber=said["fiber"],
            hostname=str(said["host"]),
            archive=str(said["archive"]),
            root=str(said["root"]),
            cpus=int(said["cpus"]),
            memory=int(said["memory"]),
            door=(seen[2], int(seen[3])) if len(seen) == 4 else None,
            ours=seen[0] if len(seen) == 4 else None,
        )


@attrs.frozen
class Answer:
    """What a program on a host answered."""

    #: its exit code
    code: int
    #: what it wrote to stdout
    output: str
    #: and to stderr
    errors: str


def open_agent(
    transport: paramiko.Transport, name: str, python: str, root: str | None, timeout: float
) -> tuple[paramiko.Channel, About]:
    """Have a host's Python run the agent's code; returns the way to the agent.

    Args:
        transport: the connection.
        name: what the user calls the host.
        python: the Python.
        root: where the agent keeps its files, None for the usual place.
        timeout: seconds to wait for the first answer.

    Raises:
        BackendUnavailableError: there is no such Python, it is too old, or cannot be used; with
            the fix.
    """
    digest, archive = agent_archive()
    order = json.dumps({"digest": digest, "size": len(archive), "root": root}).encode()
    channel = transport.open_session(timeout=timeout)
    try:
        channel.settimeout(timeout)
        channel.exec_command(python_line(python, loader_source()))
        channel.sendall(f"{len(order):8d}".encode() + order + archive)
        said = _first_answer(channel, name, python)
        version = ".".join(map(str, said["python"]))
        if said.get("problem"):
            msg = f"fiber cannot keep its files on host {name}: {said['problem']}; name a folder with FIBER_SSH_ROOT"
            raise BackendUnavailableError(msg)
        if tuple(said["python"])[:2] < (3, 10):
            msg = (
                f"{python} on host {name} is Python {version}, and 3.10 or later is needed; name "
                "another one with 'python = …' in the hosts file, or with FIBER_SSH_PYTHON"
            )
            raise BackendUnavailableError(msg)
        channel.settimeout(None)
    except DROPPED as error:
        channel.close()
        msg = f"host {name} does not start fiber's agent: {str(error) or type(error).__name__}"
        raise BackendUnavailableError(msg) from error
    except BaseException:
        channel.close()
        raise
    return channel, About.of(said)


def _first_answer(channel: paramiko.Channel, name: str, python: str) -> dict[str, Any]:
    """The loader's line; what a shell's start-up files print before it is left out."""
    mark = b"fiber-ssh:"
    data = b""
    while True:
        start = data.find(mark)
        end = data.find(b"\n", start)
        if start >= 0 and end >= 0:
            found: dict[str, Any] = json.loads(data[start + len(mark) : end])
            return found
        if len(data) > _MOST:
            msg = f"host {name} prints without end when one logs in; is its shell all right?"
            raise BackendUnavailableError(msg)
        # one byte at a time would be slow, and what comes after the line is the agent's: it says
        # nothing before it is asked
        piece = channel.recv(4096)
        if not piece:
            raise BackendUnavailableError(_why_not(channel, name, python))
        data += piece


def _why_not(channel: paramiko.Channel, name: str, python: str) -> str:
    code = channel.recv_exit_status()
    words = b""
    while piece := channel.recv_stderr(4096):
        words += piece
    text = words_of(words)
    if code in (126, 127):
        return (
            f"there is no Python {python!r} on host {name} ({text}); install Python 3.10 or later "
            "there, or name it with 'python = …' in the hosts file or with FIBER_SSH_PYTHON"
        )
    return f"{python} on host {name} ended with exit code {code}: {text or 'it said nothing'}"


def run(
    transport: paramiko.Transport,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout: float,
    path: str | None = None,
) -> Answer:
    """Run a program to its end; what the user's shell writes before it is left out.

    Args:
        transport: the connection.
        argv: program and arguments.
        stdin: what it reads.
        timeout: seconds until it is given up.
        path: as for :func:`~fiber_ssh.command.command_line`.

    Raises:
        BackendUnavailableError: it cannot be run, or took too long.
    """
    try:
        with transport.open_session(timeout=timeout) as channel:
            channel.settimeout(timeout)
            channel.exec_command(command_line(argv, path=path, marked=True))
            errors = bytearray()
            reader = threading.Thread(target=_read_errors, args=(channel, errors), daemon=True)
            reader.start()
            channel.sendall(stdin)
            channel.shutdown_write()
            output = bytearray()
            while piece := channel.recv(65536):
                output += piece
            if not channel.status_event.wait(timeout):
                raise TimeoutError
            reader.join(timeout)
            code = channel.recv_exit_status()
    except DROPPED as error:
        msg = f"{argv[0]} could not be run to its end: {error or type(error).__name__}"
        raise BackendUnavailableError(msg) from error
    _, mark, answer = output.partition(MARK)
    if not mark:
        words = words_of(errors)[-500:] or "it said nothing"
        msg = f"{argv[0]} was not run: the user's shell ended before with exit code {code}: {words}"
        raise BackendUnavailableError(msg)
    return Answer(code, answer.decode("utf-8", "replace"), words_of(errors))


def words_of(errors: bytes | bytearray) -> str:
    """The words on stderr: a marked command's own, or those of a shell that did not come to it."""
    return errors.rpartition(MARK)[2].decode("utf-8", "replace").strip()


def _read_errors(channel: paramiko.Channel, into: bytearray) -> None:
    try:
        while piece := channel.recv_stderr(65536):
            into += piece
    except OSError:
        # the other thread tells of it
        return
