"""Programs run on a host over ssh: the agent, whose code is sent, and single commands with captured output.

Each is an ``exec`` request on a session channel (RFC 4254, section 6.5), and so runs in the user's
login shell, whose own output is skipped.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Sequence
from importlib import resources
from typing import Any

import attrs
import paramiko

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.connect import CONNECTION_ERRORS
from fiber_ssh.shell_command import MARKER, command_line, python_command

_MAX_GREETING = 256 * 1024
#: what is run there; the last three are imported where they are needed, and by another name
_ROOTS = (
    "fiber_ssh.remote.__main__",
    "fiber_ssh.remote.agent",
    "fiber_ssh.remote.files",
    "fiber._base.light_values",
)
#: their own modules import far more than the agent needs
_EMPTY = ("fiber", "fiber_ssh", "fiber_ssh.remote")
_IMPORT = re.compile(r"^from (fiber[\w.]*) import ([^(\n]+|\([^)]*\))", re.MULTILINE)
# a fixed time stamp: the same modules give the same bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)


@attrs.frozen(kw_only=True)
class HostInfo:
    """A host's Python, hardware and addresses, as its loader reports them."""

    #: version of Python
    python: tuple[int, ...]
    #: path of that Python
    executable: str
    #: installed version of fiber-core; None where it is not installed
    fiber: str | None
    #: the host's own name
    hostname: str
    #: paths of the agent's archive and of its folder
    archive: str
    root: str
    #: number of CPUs
    cpus: int
    #: memory in MB
    memory: int
    #: address and port of its sshd, and address of this machine, as the host sees them, from
    #: ``SSH_CONNECTION``; None where its sshd does not set that
    ssh_address: tuple[str, int] | None
    client_address: str | None

    @property
    def address(self) -> str | None:
        """The address of its sshd at which it was reached."""
        return None if self.ssh_address is None else self.ssh_address[0]

    @classmethod
    def of(cls, greeting: dict[str, Any]) -> HostInfo:
        """Read the loader's first line."""
        seen = str(greeting.get("seen") or "").split()
        return cls(
            python=tuple(greeting["python"]),
            executable=str(greeting["executable"]),
            fiber=greeting["fiber"],
            hostname=str(greeting["host"]),
            archive=str(greeting["archive"]),
            root=str(greeting["root"]),
            cpus=int(greeting["cpus"]),
            memory=int(greeting["memory"]),
            ssh_address=(seen[2], int(seen[3])) if len(seen) == 4 else None,
            client_address=seen[0] if len(seen) == 4 else None,
        )


@attrs.frozen
class CommandResult:
    """Exit code and output of a program on a host."""

    #: exit code
    code: int
    #: stdout
    output: str
    #: stderr
    errors: str


def open_session(transport: paramiko.Transport, timeout: float) -> paramiko.Channel:
    """Open a channel for a program.

    Args:
        transport: the connection.
        timeout: seconds to wait for it.

    Raises:
        BackendUnavailableError: the host's sshd allows no further one on the connection.
    """
    try:
        return transport.open_session(timeout=timeout)
    except paramiko.ChannelException as error:
        msg = (
            f"its sshd opens no further session on the connection ({error.text}); set MaxSessions "
            "in its sshd_config to 10, the default, or more"
        )
        raise BackendUnavailableError(msg) from error


def open_agent(
    transport: paramiko.Transport, name: str, python: str, root: str | None, timeout: float
) -> tuple[paramiko.Channel, HostInfo]:
    """Start or join a host's agent; returns the channel to it.

    Args:
        transport: the connection.
        name: the host's name in the settings.
        python: its Python.
        root: folder of the agent's files, None for the default.
        timeout: seconds for the first answer.

    Raises:
        BackendUnavailableError: that Python is missing, too old, or has no folder to write to;
            with the fix.
    """
    digest, archive = agent_archive()
    request = json.dumps({"digest": digest, "size": len(archive), "root": root}).encode()
    channel = open_session(transport, timeout)
    try:
        channel.settimeout(timeout)
        channel.exec_command(python_command(python, loader_source()))
        channel.sendall(f"{len(request):8d}".encode() + request)
        greeting = _read_greeting(channel, name, python)
        version = ".".join(map(str, greeting["python"]))
        if greeting.get("problem"):
            msg = f"fiber cannot keep its files on host {name}: {greeting['problem']}; name a folder with FIBER_SSH_ROOT"
            raise BackendUnavailableError(msg)
        if tuple(greeting["python"])[:2] < (3, 10):
            raise BackendUnavailableError(_too_old(python, name, version))
        if greeting.get("lacks"):
            channel.sendall(archive)
        channel.settimeout(None)
    except TimeoutError as error:
        channel.close()
        msg = (
            f"host {name} has not started fiber's agent {timeout:g} s after the log-in: its shell or "
            f"{python} waits for something; see what `ssh {name} {python} -V` does, or set "
            "FIBER_SSH_CONNECT_TIMEOUT to more seconds"
        )
        raise BackendUnavailableError(msg) from error
    except CONNECTION_ERRORS as error:
        channel.close()
        msg = f"host {name} does not start fiber's agent: {str(error) or type(error).__name__}"
        raise BackendUnavailableError(msg) from error
    except BaseException:
        channel.close()
        raise
    return channel, HostInfo.of(greeting)


def _read_greeting(channel: paramiko.Channel, name: str, python: str) -> dict[str, Any]:
    """Read the loader's line; output of the shell's start-up files before it is skipped."""
    marker = b"fiber-ssh:"
    data = b""
    while True:
        start = data.find(marker)
        end = data.find(b"\n", start)
        if start >= 0 and end >= 0:
            try:
                found = json.loads(data[start + len(marker) : end])
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                return found
            msg = f"the first line of fiber's agent on host {name} makes no sense: {data[start:end][:200]!r}"
            raise BackendUnavailableError(msg)
        if len(data) > _MAX_GREETING:
            msg = f"host {name} prints without end when one logs in; is its shell all right?"
            raise BackendUnavailableError(msg)
        # reading beyond the line is safe: the agent sends nothing before it gets a request
        piece = channel.recv(4096)
        if not piece:
            raise BackendUnavailableError(explain_end(channel, name, python))
        data += piece


def explain_end(channel: paramiko.Channel, name: str, python: str) -> str:
    """Text on why the agent, or its loader, ended on a host, from its exit code and stderr."""
    code = channel.recv_exit_status()
    words = b""
    while piece := channel.recv_stderr(4096):
        words += piece
    text = stderr_text(words) or "it said nothing"
    # sshd reports a signal in place of a code
    how = f"ended with exit code {code}" if code >= 0 else "was ended by a signal"
    if MARKER not in words:
        return (
            f"the shell on host {name} {how} before it ran {python}: {text}; see its start-up files, "
            "and ForceCommand in the sshd_config there"
        )
    if code in (126, 127):
        return (
            f"there is no Python {python!r} on host {name} ({text}); install Python 3.10 or later "
            "there, or name it with 'python = …' in the hosts file or with FIBER_SSH_PYTHON"
        )
    if "SyntaxError" in text:
        # the loader is a program for any Python 3
        return _too_old(python, name, "2")
    return f"{python} on host {name} {how}: {text}"


def _too_old(python: str, name: str, version: str) -> str:
    return (
        f"{python} on host {name} is Python {version}, and 3.10 or later is needed; name another one "
        "with 'python = …' in the hosts file, or with FIBER_SSH_PYTHON"
    )


def run(
    transport: paramiko.Transport,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout: float,
) -> CommandResult:
    """Run a program to its end and capture its output, without that of the user's shell.

    Args:
        transport: the connection.
        argv: program and arguments.
        stdin: its standard input.
        timeout: seconds until it is aborted.

    Raises:
        BackendUnavailableError: it could not be run, or took too long.
    """
    try:
        with open_session(transport, timeout) as channel:
            channel.settimeout(timeout)
            channel.exec_command(command_line(argv, marked=True))
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
    except CONNECTION_ERRORS as error:
        is_late = isinstance(error, TimeoutError)
        words = f"it took more than {timeout:g} s" if is_late else error or type(error).__name__
        msg = f"{argv[0]} could not be run to its end: {words}"
        raise BackendUnavailableError(msg) from error
    _, marker, answer = output.partition(MARKER)
    if not marker:
        words = stderr_text(errors)[-500:] or "it said nothing"
        msg = f"{argv[0]} was not run: the user's shell ended before with exit code {code}: {words}"
        raise BackendUnavailableError(msg)
    return CommandResult(code, answer.decode("utf-8", "replace"), stderr_text(errors))


def stderr_text(errors: bytes | bytearray) -> str:
    """Text on stderr: a marked command's own, or the shell's where the command was not run."""
    return errors.rpartition(MARKER)[2].decode("utf-8", "replace").strip()


def _read_errors(channel: paramiko.Channel, into: bytearray) -> None:
    try:
        while piece := channel.recv_stderr(65536):
            into += piece
    except OSError:
        # the other thread gets and reports the same error
        return


# -- the agent's code


@functools.cache
def agent_archive() -> tuple[str, bytes]:
    """SHA-256 of the archive (16 hex digits), and its bytes; the same code gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in sorted(_modules().items()):
            info = zipfile.ZipInfo(path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest()[:16], data


def _modules() -> dict[str, str]:
    """Sources, by their paths in the archive, of the agent and of all of Fiber that it imports."""
    found = {"__main__.py": _source(_ROOTS[0])[1]}
    known: set[str] = set()
    wanted = [*_ROOTS]
    while wanted:
        name = wanted.pop()
        path, text = _source(name)
        if name in known or not path:
            continue
        known.add(name)
        found[path] = text
        wanted.append(name.rpartition(".")[0])
        for module, names in _IMPORT.findall(text):
            wanted += [module, *(f"{module}.{one}" for one in re.findall(r"\w+", names))]
    return found


def _source(name: str) -> tuple[str, str]:
    """Path and text of a module; empty where there is none of that name."""
    package, *rest = name.split(".")
    if not package:
        return "", ""
    folder = resources.files(package)
    for path in ("/".join([*rest, "__init__.py"]), "/".join(rest) + ".py"):
        file = folder.joinpath(path)
        if file.is_file():
            text = "" if name in _EMPTY else file.read_text(encoding="utf-8")
            return f"{package}/{path}", text
    return "", ""


@functools.cache
def loader_source() -> str:
    """Source of the program that receives and runs the archive on a host."""
    return resources.files("fiber_ssh.remote").joinpath("loader.py").read_text(encoding="utf-8")
