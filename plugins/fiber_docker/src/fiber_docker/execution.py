"""``Backend.exec``: a program in a job's container, with this process's standard streams.

Apart from the client, which knows nothing of this process's streams.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

from fiber_docker.client import Client
from fiber_docker.output import write
from fiber_docker.stream import STDOUT, Stream

__all__ = ["execute"]

_PIECE = 1 << 16


def execute(
    client: Client, job_id: str, argv: Sequence[str], stdin: BinaryIO | None, *, tty: bool
) -> int:
    """Run a program in a job's container, its output to ours; return its exit code."""
    options: dict[str, Any] = {
        "stdin": stdin is not None,
        "tty": tty,
        # the program must not take itself for a process of Fiber's
        "environment": ["FIBER_BOOTSTRAP="],
    }
    with client.translate_errors("run a program beside a job", job_id):
        exec_id = client.api.exec_create(job_id, list(argv), **options)["Id"]
        stream = Stream(client.api.exec_start(exec_id, socket=True, tty=tty))
    if stdin is not None:
        threading.Thread(
            target=_copy_input, args=(stdin, stream), name="fiber-docker-stdin", daemon=True
        ).start()
    try:
        if tty:
            while data := stream.read_raw():
                write(STDOUT, data)
        else:
            while (piece := stream.read()) is not None:
                write(*piece)
    finally:
        stream.close()
    with client.translate_errors("report how a program ended"):
        return int(client.api.exec_inspect(exec_id)["ExitCode"] or 0)


def _copy_input(stdin: BinaryIO, stream: Stream) -> None:
    # a program that has ended reads no more
    with contextlib.suppress(OSError):
        read = getattr(stdin, "read1", stdin.read)
        while data := read(_PIECE):
            stream.write(data)
        stream.end_input()
