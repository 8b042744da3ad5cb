"""Room for the descriptors of many connections, made when it is about to be needed."""

from __future__ import annotations

import contextlib
import resource


def make_room(connections: int) -> None:
    """Raise the soft limit of open files where half of it is taken by connections.

    A program with few of them keeps the limit that it was started with: what it starts in turn may
    use ``select()``, which cannot watch descriptors beyond the usual one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or 2 * connections < soft:
        return
    wanted = 4 * soft if hard == resource.RLIM_INFINITY else min(4 * soft, hard)
    if wanted > soft:
        # a system may have a lower limit still, which is told when there is no descriptor left
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
