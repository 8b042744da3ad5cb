"""Lines out of what the engine sends of a container's output."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fiber_docker.client import Client

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
        with contextlib.suppress(Exception):
            # it has ended by itself, and what closing it then raises differs with the transport
            pieces.close()
