"""Page of a program that asked for one, by ``fiber.init(dashboard=True)``: served by a process of its own.

That process is started by the program and ends with it. It asks at the status socket, as others do: where it is
killed, stopped or slow, the program loses its page and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fiber._agent import rundir
from fiber._agent.supervisor.kernel import ProcessWatch
from fiber._agent.supervisor.start import python
from fiber._dashboard.server import Run, Server, require
from fiber._tasks.dispatcher import text_of
from fiber._watch.status import Asker
from fiber.exceptions import FiberError
from fiber.model import Timing

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime

log = logging.getLogger("fiber")

#: relative entries would mean others where the program changes its working directory
_CODE = "import sys; sys.path[:] = {!r}; from fiber._dashboard.program import main; main()"


class Page:
    """Process that serves the page of this program's run, and the thread that hears from it.

    Args:
        runtime: of the program.
        address: ``HOST:PORT`` where it is to be served.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, runtime: Runtime, address: str) -> None:
        self._timing = runtime.timing
        self._is_closed = False
        path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" is the folder
        self._process = subprocess.Popen(
            [python(), "-c", _CODE.format(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the program
            start_new_session=True,
        )
        request = {
            "parent": os.getpid(),
            "folder": str(runtime.directory),
            "address": address,
            "scale": runtime.timing.scale,
            # neither on its command line nor in its environment
            "token": secrets.token_urlsafe(24),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        self._thread = threading.Thread(target=self._hear, name="fiber-dashboard", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def close(self) -> None:
        """Have the process tell those who look that the program has ended, and end it; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        assert self._process.stdin is not None
        # it may have ended
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps({"ended": _how()}).encode() + b"\n")
            self._process.stdin.flush()
        self._thread.join(self._timing.output)
        self._process.kill()
        self._thread.join(self._timing.kill)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        with self._process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if "url" in said:
                    sys.stderr.write(f"fiber: the dashboard is at {said['url']}\n")
                    sys.stderr.flush()
                else:
                    log.warning("fiber: %s; the program runs without", said["error"])
                    self._is_closed = True
        code = self._process.wait()
        self._process.stdin.close()
        if not self._is_closed:
            log.warning(
                "fiber: the process of the dashboard has ended with code %d; the program goes on",
                code,
            )


def _how() -> str:
    """What this program ends with: the error that nothing has caught; "" where there is none."""
    error = getattr(sys, "last_value", None)
    # at a prompt it was that of some line, and the program went on
    if error is None or hasattr(sys, "ps1"):
        return ""
    said = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def serve_run(runtime: Runtime, address: str) -> Page | None:
    """Serve the page of this process's run; None, with a warning, where that cannot be."""
    try:
        require()
        return Page(runtime, address)
    except (FiberError, OSError) as error:
        log.warning("fiber: %s; the program runs without", error)
        return None


def main() -> None:
    """Serve the page of the program that started this process, until that ends."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_die_with, args=(request["parent"],), daemon=True).start()
    folder, timing = Path(request["folder"]), Timing.at(request["scale"])
    described = rundir.describe(folder) or {}
    run = Run(
        id=folder.name,
        program=tuple(described.get("program") or ()),
        backend=str(described.get("backend", "")),
        created=described.get("created"),
        connect=lambda: Asker(folder, timing.connect),
    )
    try:
        server = Server(lambda: [run], request["address"], timing, token=request["token"])
    except FiberError as error:
        _say(error=str(error))
        return
    threading.Thread(target=_end_with, args=(server,), daemon=True).start()
    _say(url=server.url)
    server.run()


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201 - heard by the program


def _end_with(server: Server) -> None:
    """End the server when the program says that it ends."""
    line = sys.stdin.readline()
    if line and not server.end(json.loads(line)["ended"]):
        # the program waits for this, and the server would look after a tenth of a second
        os._exit(0)


def _die_with(parent: int) -> None:
    """End this process at once when its parent has; the pipe may be kept by what that has forked."""
    try:
        watch: list[Any] = [ProcessWatch(parent)]
        if os.getppid() == parent:
            select.select(watch, [], [])
    except ProcessLookupError:
        # it has ended before this began
        pass
    os._exit(0)
