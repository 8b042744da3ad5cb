"""Lines out of what the engine sends of a container's output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fiber_docker.client import Client, close_stream

__all__ = ["split"]


def split(client: Client, pieces: Any) -> Iterator[str]:
    """Yield whole lines without their newlines, and at the end what has none.

    Args:
        client: translates errors of the stream.
        pieces: the stream; closed at the end, or when the caller has enough.
    """
    rest = b""
    try:
        with client.asking("go on with logs"):
            for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line.decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")
    finally:
        close_stream(pieces)
