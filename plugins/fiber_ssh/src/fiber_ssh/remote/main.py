"""What an agent's archive does when it is run: join an ssh session and the agent, or be the agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from typing import BinaryIO

from fiber.backend_parts.bridge import copy

_SOCKET = "agent.sock"
_TRIES = 20


def main() -> None:
    """``session ROOT``, ``agent ROOT`` or ``files ROOT``."""
    what, root = sys.argv[1:]
    # sockets have short names, wherever the folder lies
    os.chdir(root)
    if what == "agent":
        _be_agent(root)
    elif what == "files":
        from fiber_ssh.remote.files import receive_files

        receive_files(root)
    else:
        _be_session(root)


def _be_session(root: str) -> None:
    sock = _connect(root)
    if sock is None:
        sys.exit(
            "fiber's agent on this host does not answer; see " + os.path.join(root, "agent.err")
        )
    # one side that is gone is an end
    with contextlib.suppress(OSError):
        copy(sock)
    os._exit(0)


def _connect(root: str) -> socket.socket | None:
    for _ in range(_TRIES):
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(True)
        try:
            sock.connect(_SOCKET)
            # an agent that is about to end accepts nobody any more
            if sock.recv(1):
                return sock
        except OSError:
            pass
        sock.close()
        _start_agent(root)
    return None


def _start_agent(root: str) -> None:
    """Start an agent of its own session; returns once it listens or has ended."""
    with open("agent.err", "ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", sys.argv[0], "agent", root],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=root,
            start_new_session=True,
        )
    assert process.stdout is not None
    # one that finds another there ends, one that listens lets go of its output
    process.stdout.read()
    process.stdout.close()
    # it is nobody's child once this session ends, and tells nobody of its end
    process.returncode = 0


def _have_turn(lock: BinaryIO) -> bool:
    """Wait until an agent that is about to end has ended; False where one goes on."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as other:
                other.setblocking(True)
                other.connect(_SOCKET)
                if other.recv(1):
                    return False
            # an agent that begins or ends tells nobody when it has
            time.sleep(0.02)
        else:
            return True


def _be_agent(root: str) -> None:
    # a session needs none of this
    from fiber._agent.supervisor.child import InChild, become
    from fiber_ssh.remote.agent import Agent

    with open("lock", "wb") as lock:
        if not _have_turn(lock):
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SOCKET)
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(True)
        listener.bind(_SOCKET)
        os.chmod(_SOCKET, 0o600)
        listener.listen(64)
        agent = Agent(root, listener)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            agent.serve()
        except InChild as child:
            signal.set_wakeup_fd(-1)
            become(child.plan)
        os.unlink(_SOCKET)
        listener.close()
