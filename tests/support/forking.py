"""Scripts that open everything of the transport and then fork, in processes of their own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from commands import ran

#: opens everything there is, as a runtime does
_OPEN = """
import gc, json, os, socket, sys, threading, time, traceback
from pathlib import Path
from wire_world import ListeningEndpoint, Mailbox, hello
from fiber.exceptions import ForkedError, PeerLostError
from fiber._wire import fork
from fiber._wire.client import Client
from fiber._wire.endpoint import Endpoint
from fiber._wire.handshake import Credentials
from fiber._wire.link import Link
from fiber._base.threads import Reactor
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


#: executes scripts, one a line, in a process that has everything open
_LOOP = """
open_all(scheme, folder)
for line in iter(sys.stdin.readline, ""):
    try:
        exec(json.loads(line), globals())
        assert works()
    except SystemExit:
        # of a child
        raise
    except BaseException:
        traceback.print_exc()
    print(flush=True)
    print("the script has ended", flush=True)
close_all()
"""


class Program:
    """A process that has everything of the transport open, and executes scripts."""

    def __init__(self, scheme: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            _command(_LOOP, scheme, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ(),
        )

    def run(self, script: str) -> None:
        """Execute a script that says nothing."""
        assert self.said(script) == ""

    def said(self, script: str) -> str:
        """Execute a script, after which everything still works; what it and its children said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(textwrap.dedent(script)) + "\n")
        self._process.stdin.flush()
        said = ""
        while (line := self._process.stdout.readline()) != "the script has ended\n":
            assert line, f"the process has ended: {said}"
            said += line
        return said.removesuffix("\n")

    def close(self) -> None:
        """End it, which ends well."""
        said, _ = self._process.communicate(timeout=40)
        # whole: pytest would cut what nng says when it panics
        assert self._process.returncode == 0 and not said, f"{self._process.returncode}: {said}"


def whole(script: str) -> str:
    """A script behind what each of them needs."""
    return _OPEN + textwrap.dedent(script)


def run(script: str, scheme: str, folder: Path) -> None:
    """Run a script, which says nothing, in a process of its own."""
    done = ran(_command(script, scheme, folder), timeout=40, env=environ())
    said = done.stdout + done.stderr
    assert done.returncode == 0 and not said, f"{done.returncode}: {said}"


def _command(script: str, scheme: str, folder: Path) -> list[str]:
    warnings = ("-W", "ignore::DeprecationWarning")
    return [sys.executable, *warnings, "-c", whole(script), scheme, str(folder)]


def environ() -> dict[str, str]:
    """An environment in which a script finds what tests share."""
    support = str(Path(__file__).parent)
    paths = [support, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
