"""Starts a container that was made: hands it what is private, shows its output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from fiber.model import JobSpec
from fiber_docker.client import Client
from fiber_docker.container import Plan
from fiber_docker.output import Pump

__all__ = ["start"]


def start(client: Client, spec: JobSpec, wanted: Plan, keep: Callable[[Pump], None]) -> None:
    """Start a container.

    Args:
        client: the engine.
        spec: the job.
        wanted: its container, which was made.
        keep: given what shows its output before it runs: it may have ended before the engine's
            answer is here.

    Raises:
        SubmitError: its first program cannot be started.
    """
    if wanted.files is not None:
        client.put(wanted.name, "/", wanted.files)
    shown = not spec.detached
    if not (wanted.stdin or shown):
        client.start(wanted.name, spec.name)
        return
    stream = client.attach(wanted.name, stdin=bool(wanted.stdin), output=shown)
    pump = Pump(stream, f"[{spec.name}] ".encode() if spec.log_prefix else b"") if shown else None
    if pump is not None:
        keep(pump)
    try:
        client.start(wanted.name, spec.name)
        if wanted.stdin:
            # one that has ended meanwhile reads no more
            with contextlib.suppress(OSError):
                stream.write(wanted.stdin)
    except BaseException:
        stream.close()
        raise
    finally:
        if pump is not None:
            pump.begin()
        else:
            stream.close()
