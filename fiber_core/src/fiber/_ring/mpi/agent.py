"""What ``mpirun`` calls in place of a remote shell: has its launcher run words on a member.

It is run as a file, many at once, by a Python that imports nothing else of this package: who starts
a rank waits for it. The launcher's socket is in a folder that its user alone may enter, so nothing
secret is in arguments or in the environment.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

__all__ = ["DOOR", "call", "main", "parse"]

#: names the launcher's socket
DOOR = "FIBER_MPI_DOOR"
#: what remote shells answer where the fault is theirs
FAILED = 255
#: remote shells' options that have a value, in a word of its own unless it follows at once
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOopQRSWw")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def parse(words: Sequence[str]) -> tuple[str, str]:
    """The host that an agent's words name, and the command for a shell there.

    Options of remote shells before the host mean nothing here and are left out, and so are a user's
    name, and a port after the host.

    Raises:
        ValueError: no host or no command is named.
    """
    rest = _without_options(list(words))
    if not rest:
        msg = "no host is named: the words are [options] HOST COMMAND..."
        raise ValueError(msg)
    host = rest.pop(0).rpartition("@")[2]
    if rest[:1] == ["-p"]:
        rest = rest[2:]
    # as remote shells do; quotes and blanks are the far shell's to read
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


def call(door: str, host: str, command: str) -> int:
    """Have the launcher that listens at ``door`` run a command with this process's own streams.

    Returns:
        The command's exit code, 128 and the number of a signal that ended it, or 255.
    """
    header = f"{host}\0{command}".encode("utf-8", "surrogateescape")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(True)
        try:
            connection.connect(door)
            length = b"%d\n" % len(header)
            socket.send_fds(connection, [length], _streams())
            connection.sendall(header)
        except OSError as error:
            return _fail(f"the run of this agent cannot be reached at {door}: {error.strerror}")
        for number in _PASSED_ON:
            # one that is ignored stays so
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
            # it was closed by who started us
            number = os.open(os.devnull, os.O_RDWR)  # noqa: PLW2901 - stands in its place
        found.append(number)
    return found


def _fail(text: str) -> int:
    sys.stderr.write(f"fiber: {text}\n")
    return FAILED


def main() -> int:
    """Be the agent: the words of the command line, and the launcher of the environment."""
    door = os.environ.get(DOOR)
    if not door:
        return _fail(f"{DOOR} is not set: this program is started by mpirun within fiber mpirun")
    try:
        host, command = parse(sys.argv[1:])
    except ValueError as error:
        return _fail(str(error))
    return call(door, host, command)


if __name__ == "__main__":
    sys.exit(main())
