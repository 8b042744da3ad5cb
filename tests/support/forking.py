"""Scripts that open everything of the transport and then fork, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["environ", "run", "whole"]

#: opens everything there is, as a runtime does
_OPEN = """
import gc, json, os, socket, sys, threading, time
from pathlib import Path
from wire_world import ListeningEndpoint, Mailbox, hello
from fiber.exceptions import ForkedError, PeerLostError
from fiber._wire import fork
from fiber._wire.client import Client
from fiber._wire.endpoint import Endpoint
from fiber._wire.identity import Credentials
from fiber._wire.link import Link
from fiber._wire.reactor import Reactor
from fiber._wire.frames import Kind

def open_all(scheme, folder):
    global listening, link, client, peer
    listening = ListeningEndpoint(scheme, folder)
    fork.register(listening.reactor)
    link = listening.link()
    client = Client(listening.url, listening.credentials, hello("client"), listening.reactor)
    peer = listening.peer("dialler")
    assert works()

def works():
    link.send(Kind.CALL, 1, 1, [b"x"])
    answer = link.receive(timeout=20)
    pending = client.call(1, [b"y"])
    return bytes(answer.body) == b"x" and pending.wait(20) and bytes(pending.result()) == b"y"

def close_all():
    client.close()
    listening.close()

def in_child(action, *arguments):
    pid = os.fork()
    if not pid:
        sys.stdin.close()
        action(*arguments)
        sys.exit(0)
    return pid

def ended_well(pid):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, f"the child ended with {code}"

scheme, folder = sys.argv[1], Path(sys.argv[2])
"""


def whole(script: str) -> str:
    """A script behind what each of them needs."""
    return _OPEN + textwrap.dedent(script)


def run(script: str, scheme: str, folder: Path) -> str:
    """Run a script in a process of its own; returns what it printed."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            whole(script),
            scheme,
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=40,
        env=environ(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def environ() -> dict[str, str]:
    """An environment in which a script finds what tests share."""
    support = str(Path(__file__).parent)
    paths = [support, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
