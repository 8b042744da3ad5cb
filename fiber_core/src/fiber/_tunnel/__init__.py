"""Tunnel: connections of a job carried over a byte stream that only the submitting side can open.

For jobs that cannot dial the process that submitted them (``kubectl port-forward``, ssh, Slurm's
steps). The client, in the process that has the platform, opens one stream into each job; the server,
in the job's supervisor, accepts it. All connections between processes of the job and others travel in
it, in both directions. Their ends notice nothing: TLS and the handshake of :mod:`fiber._wire` run end
to end through it. A stream that breaks loses nothing: the next one goes on where it ended.

=========== =======================================================================
routes      addresses behind a tunnel, and loopback ports that lead to them
mux         channels, credits, resumption: the bytes of a stream; pure
tunnel      one job's connections and its stream of the moment (the run's handshake, then frames with
            codes); the same on both sides
client      opens streams
server      streams are opened into it
=========== =======================================================================

Invariants: a frame is kept until the other side has acknowledged it; a channel sends no more than it
was granted, so that one that nobody reads holds up no other; bytes of a connection are never decoded.

Each side runs on a reactor and shares its thread; opening of streams, which blocks, has threads of
its own. Called by ``_launch``, ``_agent`` and ``_objects``; calls ``_wire``.
"""

from __future__ import annotations

import re

#: in front of a URL, maybe behind the name of an auth domain
_ROUTE = r"(?:[0-9a-f]{16}@)?tunnel\+"


def is_route(url: str) -> bool:
    """True for an address that is reached through the tunnel alone; here, for processes without one."""
    return re.match(_ROUTE, url) is not None
