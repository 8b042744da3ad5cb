"""Programs beside a job: ``exec``, with its streams."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

from fiber_docker.client import Client
from fiber_docker.output import write
from fiber_docker.stream import STDOUT, Stream

__all__ = ["run_beside"]

_PIECE = 1 << 16


def run_beside(
    client: Client, job_id: str, argv: Sequence[str], stdin: BinaryIO | None, *, tty: bool
) -> int:
    """Run a program in a job's container, its output to ours; return its exit code."""
    options: dict[str, Any] = {
        "stdin": stdin is not None,
        "tty": tty,
        # a program of the user's is no job of Fiber's
        "environment": ["FIBER_BOOTSTRAP="],
    }
    with client.asking("run a program beside a job", job_id):
        made = client.api.exec_create(job_id, list(argv), **options)["Id"]
        stream = Stream(client.api.exec_start(made, socket=True, tty=tty))
    if stdin is not None:
        threading.Thread(
            target=_feed, args=(stdin, stream), name="fiber-docker-stdin", daemon=True
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
    with client.asking("tell how a program ended"):
        return int(client.api.exec_inspect(made)["ExitCode"] or 0)


def _feed(stdin: BinaryIO, stream: Stream) -> None:
    # a program that has ended reads no more
    with contextlib.suppress(OSError):
        read = getattr(stdin, "read1", stdin.read)
        while data := read(_PIECE):
            stream.write(data)
        stream.end_input()
