"""Program that ``mpirun`` calls in place of a remote shell: runs a command on a member.

mpirun starts it as a file, many at once, and waits for it before ranks start. So it imports nothing
of this package and only light modules of the standard library. It sends host and command to the
launcher's socket, which is in a folder that only its user may enter: no secret is in arguments or
in the environment.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

#: environment variable with the path of the launcher's socket
SOCKET = "FIBER_MPI_DOOR"
#: exit code of remote shells for errors of their own
FAILED = 255
#: options of remote shells that have a value, in an argument of its own unless it follows at once
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOopQRSWw")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def parse(words: Sequence[str]) -> tuple[str, str]:
    """Return the host, and the command for a shell there, from arguments of a remote shell.

    Options before the host, a user's name and a port are ignored.

    Raises:
        ValueError: there is no host or no command.
    """
    rest = _without_options(list(words))
    if not rest:
        msg = "no host is named: the words are [options] HOST COMMAND..."
        raise ValueError(msg)
    host = rest.pop(0).rpartition("@")[2]
    if rest[:1] == ["-p"]:
        rest = rest[2:]
    # joined as remote shells do; the shell on the host parses quotes and spaces
    command = " ".join(rest)
    if not host or not command.strip():
        msg = f"no command is named for host {host!r}: the words are [options] HOST COMMAND..."
        raise ValueError(msg)
    return host, command


def _without_options(words: list[str]) -> list[str]:
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--":
            break
        if len(option) == 2 and option[1] in _WITH_VALUE and words:
            del words[0]
    return words


def call(socket_path: str, host: str, command: str) -> int:
    """Run a command on a host through the launcher's socket, with this process's own streams.

    Returns:
        The command's exit code, 128 plus the signal that ended it, or 255 for errors of the run.
    """
    header = f"{host}\0{command}".encode("utf-8", "surrogateescape")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(True)
        try:
            connection.connect(socket_path)
            length = b"%d\n" % len(header)
            socket.send_fds(connection, [length], _streams())
            connection.sendall(header)
        except OSError as error:
            return _fail(
                f"the run of this agent cannot be reached at {socket_path}: {error.strerror}"
            )
        for number in _PASSED_ON:
            # ignored signals stay ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda got, _: connection.sendall(b"%d\n" % got))
        answer = b""
        try:
            while piece := connection.recv(4096):
                answer += piece
        except OSError:
            answer = b""
    word, _, text = answer.decode(errors="replace").strip().partition(" ")
    if word == "exit":
        code = int(text)
        return 128 - code if code < 0 else code
    return _fail(text or f"the run of this agent ended before the command on {host} did")


def _streams() -> list[int]:
    found = []
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # closed by the parent process
            number = os.open(os.devnull, os.O_RDWR)  # noqa: PLW2901 - stands in its place
        found.append(number)
    return found


def _fail(text: str) -> int:
    sys.stderr.write(f"fiber: {text}\n")
    return FAILED


def main() -> int:
    """Run the agent, with the arguments of the command line and the socket of the environment."""
    socket_path = os.environ.get(SOCKET)
    if not socket_path:
        return _fail(f"{SOCKET} is not set: this program is started by mpirun within fiber mpirun")
    try:
        host, command = parse(sys.argv[1:])
    except ValueError as error:
        return _fail(str(error))
    return call(socket_path, host, command)


if __name__ == "__main__":
    sys.exit(main())
